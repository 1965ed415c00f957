// Zamok is the binary of the lock service. It runs nodes, runs commands under locks, and operates
// clusters.
//
//	zamok dev                          a cluster on this machine, to try things
//	zamok server --id n1 …             one node of a real cluster
//	zamok lock NAME -- COMMAND…        run a command while holding a lock
//	zamok acquire NAME --for 45m       reserve a lock, without a process that holds it
//	zamok elect NAME -- COMMAND…       run a command while elected leader of a name
//	zamok show NAME                    who holds a lock, who waits, and why
//
// `zamok help` lists all subcommands.
//
// main.go starts, root.go registers the subcommands, and each subcommand has a file of its name.
// What they share is in exit.go (exit codes), acquisition.go (the flags of an acquisition),
// connection.go (the connection to a cluster), output.go (text and JSON), tls.go and reload.go
// (files that are reloaded), and reservation.go (the file of a reservation). Requests to a cluster
// use request.go (one call) and jsondocs.go (the documents of -o json). The server has
// serverports.go, serveraccess.go, servertls.go, serverjoin.go, certexpiry.go and memory.go; bench
// has latency.go and package loadgen. Commands under locks use hold.go (the session), child.go
// (the process), supervise.go (ends the process before the lock can be granted to another client)
// and terminal.go (the foreground process group of the terminal).
//
// # Exit codes
//
//	0–117    the command's own; of `zamok check`: 0 held, 1 not
//	118      `zamok server`: its data directory was removed from the cluster; not to be restarted
//	119      not found: no such session (`zamok expire`), node (`remove`, `transfer`), grant
//	         (`release`), or file of a reservation; nothing was done
//	120      denied by the access rules
//	121      not acquired: --try, and the acquisition would have to wait
//	122      the wait (--wait) timed out
//	123      the lock was lost, or was about to be, and the command was ended, or had ended by
//	         itself just before; or a reservation has ended
//	124      unavailable: no node could do it in time; try again
//	125      usage, configuration, endpoints of several clusters, and every other error
//	126 127  the command can't be run; it was not found
//	128+n    the command was ended by signal n; or this program, while it waited
//
// # Promises
//
//	Z1  A command whose lock is not renewed is ended before the lock can be granted to another
//	    client: TERM is sent at the latest --kill-after before the deadline, KILL before the
//	    deadline, to its whole process group (in a pipeline at a terminal, to the command alone).
//	    After a force release it has --kill-after to end. Processes in other groups are not found,
//	    and nothing ends the command while this program is stopped: the fencing token protects
//	    from both.
//	Z2  The command does not outlive this program: on Linux the kernel kills it when this program
//	    dies. That covers the command itself; from the processes that it started the token
//	    protects.
//	Z3  Signals for the command reach it once: HUP, INT, QUIT, TERM, USR1 and USR2 are passed on
//	    to its whole process group, unless the terminal has sent them there already.
//	Z4  A secret is read from a file, never from a flag or the environment, which others can read.
//	Z5  Texts of other clients (names, labels, meta, reasons) are escaped (package visible), so
//	    that they do not affect this terminal.
//	Z6  The output of -o json is one document, or one a line where there is no end (watch). What
//	    HTTP serves, too, has the same fields here, in the same form; numbers of 64 bits are
//	    strings. Errors are on standard error and in the exit code.
//	Z7  A subcommand that changes something for others prints on standard output what it did. Its
//	    error says that nothing was done, or that this is not known.
//	Z8  If the endpoints belong to two clusters, the error names both, and nothing is done. A
//	    release that the cluster did not confirm is logged as a warning, with the time until which
//	    the lock may stay held; the exit code is that of the command.
//
// Z2 holds on Linux only.
package main
