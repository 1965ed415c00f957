// Real runs a cluster of real processes under faults, records what each process saw, and checks the history
// with package check.
//
//	make jepsen-short                                     about ten minutes, every kind of fault
//	make jepsen MINUTES=120                               run after run
//	go run ./jepsen/real -for 1m                          one run; -h lists the options
//	go run ./jepsen/real -seed 7 -only 'kill|pause'       the choices of an earlier run, some kinds of faults
//	go run ./jepsen/real -measure-leader -disks           how soon a hindered leader gives way
//	go run ./jepsen/real -recheck -out DIR history.jsonl  check a recorded history again
//
// Nodes are processes of the built `zamok server`; programs that use locks are processes of their own,
// each with several clients of several goroutines, and so is the audit, which watches all locks. All of it
// runs on loopback addresses that belong to this run, and needs no root. With -disks, as root and with
// /dev/fuse, nodes have disks that hang, fail, fill up and lose what was not flushed; where these are not
// supported, the run continues without, with a note in its report. So it does without throttled
// processors where control groups may not be written.
//
// Each run leaves a directory: read its summary.md first. The nodes' data stays only if something was wrong.
// A run is invalid if it proves too little: too few operations or faults, a kind of fault that never
// happened, a last call without an answer, a gap in what the audit saw. On a slow machine it continues for
// longer (-at-most) until it proves enough. The seed repeats what was chosen, not how processes are scheduled.
//
// # How it is built
//
//	main.go      the command line; one run from its beginning to its verdict
//	cluster.go   what runs: nodes, programs, audit, disks; node.go: processes, and nodes
//	proxy.go     the network: a proxy for every port of every node, and which process a connection is of
//	nemesis.go   when faults happen, and those that take long; faults.go: the table of all kinds
//	subprocess.go   the run's own processes and their clients; audit.go: the audit and the operator
//	cgroup.go    nodes with little processor time; measure.go: what clients see of a hindered leader
//	recorder.go  their parts of the history, and what the locks guard
//	verdict.go   the whole history, and its check; report.go: the report
//
// # Invariants
//
//	R1  All moments are CLOCK_MONOTONIC, read the same way in every process.
//	R2  Everything between two processes goes through a proxy, and the proxy knows both: programs by
//	    the address that they dial from, nodes by the process that has the socket. What a link does to bytes
//	    depends on the sender and the receiver only, not on which of them opened the connection.
//	R3  A hole loses nothing: what was sent arrives when it is closed, as TCP would have it, unless the
//	    connection was given up meanwhile.
//	R4  A fault takes nodes and programs that no other fault works on, and gives them back as they were,
//	    running and not paused. Links are shared: the faults that are injected into them add up.
//	R5  A process is ended by the pid that was started, and dies with this one.
//	R6  What is written to the guarded resources passes through one process that no fault affects.
//	R7  A call that may change something is recorded before it is made, by a write to a file, which
//	    outlives a kill.
//	R8  A process of this run's own that did not run for a moment, though nothing had paused it, records that:
//	    what its clients believed then is excused, as in a pause.
//	R9  The audit watches, and has listed the sessions, before the first request to the cluster, its own
//	    included; and it ends after the last session but its own. So what it did not see did not happen.
//
// # Not covered
//
// Digests: nodes compare them themselves, and an alarm in a node's log is a violation here; C15 has
// nothing to look at. The watch may show the end of a session late; a list that does not show it any
// more bounds that to a quarter of a second. Faults of clocks, and of single messages, are the simulation's.
package main
