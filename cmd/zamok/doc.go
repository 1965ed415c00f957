// Zamok is the lock service's one binary: it runs nodes, and commands under locks.
//
//	zamok dev                          a cluster on this machine, to try things
//	zamok server --id n1 …             one node of a real cluster
//	zamok lock NAME -- COMMAND…        run a command while holding a lock
//	zamok acquire NAME --for 45m       reserve a lock, without a process that holds it
//	zamok elect NAME -- COMMAND…       run a command wherever elected, again and again
//	zamok show NAME                    who holds a lock, who waits, and why
//
// and more to look at a cluster and to run one: `zamok help` lists all verbs.
//
// main.go starts, root.go registers the verbs, and each verb is one file of its name. What verbs
// share has a file too: exit.go (codes), acquisition.go (which locks, and how long a wait), connection.go (the flags
// that lead to a cluster), output.go (text and JSON), tls.go and reload.go (files that are reloaded), and reservation.go (the
// file of a reservation); for requests to a cluster request.go (one call) and jsondocs.go (the documents of -o json); for
// server serverports.go, serveraccess.go, servertls.go, serverjoin.go, certexpiry.go and memory.go; for bench latency.go (its loops:
// package workload); and for commands under locks hold.go (the session), child.go (the process), supervise.go (its end
// before the lock's) and terminal.go (the terminal's owner).
//
// # Exit codes
//
//	0–117    the command's own; of `zamok check`: 0 held, 1 not
//	118      `zamok server`: its data directory was removed from the cluster; not to be restarted
//	119      what was named is not there: no such session (`zamok expire`), node (`remove`, `transfer`), or
//	         grant (`release`); nothing was done
//	120      denied by the access rules
//	121      not acquired: --try, and it would have to wait
//	122      the wait (--wait) was over
//	123      the lock was lost, or was about to be, and the command was ended; or it had ended by itself just before;
//	         a reservation has ended
//	124      unavailable: no node could do it in time; try again
//	125      ours: usage, configuration, endpoints of several clusters, and what fits nothing else
//	126 127  the command can't be run; there is none of that name
//	128+n    the command was ended by signal n; or this program, while it waited
//
// # Promises
//
//	Z1  A command whose lease runs out is ended before the lock can be granted to anybody else: TERM at
//	    kill-after before the deadline at the latest, KILL before the deadline, to its whole process
//	    group (in a pipeline at a terminal, to itself). After an operator's release it has kill-after to
//	    end in order. What is left running in other groups is not found, and while this program is
//	    stopped, nothing ends the command: the fencing token guards against both.
//	Z2  It does not outlive this program: on Linux the kernel kills it when this program dies, by
//	    whatever way. That covers the command itself, not what it started: the token does.
//	Z3  Signals meant for the command reach it once: HUP, INT, QUIT, TERM, USR1 and USR2 are passed on,
//	    to its whole process group, unless the terminal has sent them there already.
//	Z4  A secret is read from a file, never from a flag or the environment, which others can read.
//	Z5  Texts of other clients (names, labels, metadata, reasons) are escaped (package visible), so that they do not
//	    affect this terminal.
//	Z6  The output of -o json is one document, or one a line where there is no end (watch); numbers of 64 bits
//	    are strings. Errors are on standard error and in the exit code.
//	Z7  A verb that changes something for others prints on standard output what it did, and otherwise in its
//	    error that nothing was done, or that this is not known.
//	Z8  Endpoints of two clusters are refused by name before anything is done. A release that the cluster did not
//	    confirm is a warning with the time until which the lock may stay held; the exit code is then the command's own.
//
// On systems other than Linux Z2 is void.
package main
