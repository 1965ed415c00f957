// Real runs a cluster of real processes under faults, records what everybody saw, and has package check
// judge it.
//
//	go run ./jepsen/real -for 1m
//	go run ./jepsen/real -seed 7 -only 'kill|pause'
//
// Nodes are processes of the built `zamok server`; programs that use locks are processes of their own,
// each with several clients of several goroutines, and so is the audit, which watches all locks. All of it
// runs on loopback addresses that belong to this run, and needs no root.
//
// # How it is built
//
//	main.go      the command line; one run from its beginning to its verdict
//	cluster.go   what runs: nodes, programs, audit; node.go, process.go
//	fabric.go    the network: a proxy for every port of every node
//	faults.go    who strikes when; kinds.go: what can be done
//	order.go     the run's own processes; load.go: programs; audit.go: the audit and the operator
//	record.go    their parts of the history; resource.go: what the locks guard
//	judge.go     the whole history, and what it shows
//
// # Invariants
//
//	R1  All moments are CLOCK_MONOTONIC, read the same way in every process.
//	R2  Everything between two processes goes through the fabric, and the fabric knows both: programs by
//	    the address that they dial from, nodes by who has the socket. What a link does to bytes depends on
//	    the sender and the receiver only, not on who opened the connection.
//	R3  A hole loses nothing: what was sent arrives when it is closed, as TCP would have it, unless the
//	    connection was given up meanwhile.
//	R4  A fault takes nodes and programs that no other fault works on, and gives them back as they were:
//	    running, not paused, the links free.
//	R5  A process is ended by the pid that was started, and dies with this one.
//	R6  A call that may change something is recorded before it is made, by a write to a file, which
//	    outlives a kill.
package main
