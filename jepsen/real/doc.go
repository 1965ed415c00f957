// Real runs a cluster of real processes under faults, records what each process saw, and checks the
// history with package check.
//
//	make jepsen-short                                     about five minutes, every kind of fault
//	make jepsen MINUTES=120                               run after run
//	go run ./jepsen/real -for 1m                          one run; -h lists the options
//	go run ./jepsen/real -seed 7 -only 'kill|pause'       repeat choices, for some kinds of faults
//	go run ./jepsen/real -measure-leader -disks           how soon an impaired leader gives way
//	go run ./jepsen/real -recheck -out DIR history.jsonl  check a recorded history again
//
// Nodes are processes of the built `zamok server`. Programs that use locks are processes of their
// own, each with several clients of several goroutines, and so is the audit, which watches all
// locks. All of it runs on loopback addresses that belong to this run, and needs no root. With
// -disks, as root and with /dev/fuse, nodes have disks that hang, fail, fill up and lose what was
// not flushed. If these are not supported, the run continues without, and its report says so. The
// same is true of throttled processors if control groups can't be written.
//
// Each run leaves a directory: read its summary.md first. The nodes' data stays if something was
// wrong. A run is invalid if it proves too little: too few operations or faults, a kind of fault
// that never happened, a last call without an answer, a gap in the audit. On a slow machine it
// continues (-at-most) until it proves enough. The seed repeats choices, not the scheduling.
//
// # How it is built
//
//	main.go      the command line; one run from its beginning to its verdict
//	cluster.go   what runs: nodes, programs, audit, disks; node.go: processes, and nodes
//	proxy.go     the network: a proxy for every port of every node, which knows both processes
//	nemesis.go   when faults happen, and the faults that take long; faults.go: the table of all
//	             kinds
//	subprocess.go   the client processes and their clients; audit.go: the audit and the operator
//	cgroup.go    nodes with little processor time; measure.go: what clients see of an impaired
//	             leader
//	recorder.go  the parts of the history, and the resource that the locks guard
//	verdict.go   the whole history, and its check; report.go: the report
//
// # Invariants
//
//	R1  All moments are CLOCK_MONOTONIC, read the same way in every process.
//	R2  Everything between two processes goes through a proxy, and the proxy knows both: programs
//	    by the address that they dial from, nodes by the process that has the socket. What a link
//	    does to bytes depends on sender and receiver, not on which of them opened the connection.
//	R3  A black hole delays: what was sent arrives when the hole is closed, as with TCP, unless
//	    the connection was given up meanwhile.
//	R4  A fault takes nodes and programs that no other fault has taken, and returns them as they
//	    were, running and not paused. Several faults can be injected into one link; they add up.
//	R5  A process is ended by the pid that was started, and dies with this one.
//	R6  What is written to the guarded resources passes through one process that no fault affects.
//	R7  A call that may change something is recorded before it is made, by a write to a file,
//	    which outlives a kill.
//	R8  A client process that did not run for a moment, although no fault had paused it, records
//	    that. The holds of its clients are excused then, as in a pause.
//	R9  The audit watches, and has listed the sessions, before the first request of a program; and
//	    it ends after the last session of a program. So only what it saw happened.
//
// # Not covered
//
// Digests: nodes compare them themselves, and an alarm in a node's log is a violation here; C15 has
// nothing to look at. The watch may show the end of a session late; a list without it bounds that
// to a quarter of a second. Faults of clocks, and of single messages, are the simulation's.
package main
