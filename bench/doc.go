// Bench measures zamok side by side with what people use for locks today: etcd, ZooKeeper, Redis and
// PostgreSQL, each through the client that its users use, and the older algorithms that this project
// set out to replace. It is a module of its own, so that no program that imports zamok's client links a
// peer's library.
//
//	make bench                                    everything: docs/benchmarks.md, in less than 25 minutes
//	make bench BENCH_SYSTEMS='zamok etcd' BENCH_WORKLOADS='own one' BENCH_ROUNDS=1 BENCH_WINDOW=500ms
//
// The script bench/run installs what is missing (Debian's packages; root is needed for that), builds
// zamok and etcd from source, measures, and writes the report. It calls two commands:
//
//	bench run …      measure; results are appended to a file, one JSON document per line
//	bench report …   results → tables and plots; may be repeated on an old file
//
// and the first calls two itself: `hold`, a process that holds a lock and is killed, and `echo`, a gRPC
// server with nothing behind it, whose speed is the floor of the transport.
//
// # How it is measured
//
// In rounds. In each round every system is started on an empty directory, warmed up (two seconds,
// ZooKeeper's three JVMs twenty), put through the workloads, and stopped, so that at any time one
// system runs and has the machine, which it shares with the clients. Every second round goes through
// the systems in the reverse order. A ratio is taken between two systems of one round; the report
// prints the median of the rounds with the extremes.
//
// # What is measured
//
//	own N         N clients with a session and a connection each lock and unlock a key of their own
//	shared 256    256 goroutines over 4 clients do the same
//	one N         N clients lock and unlock one key
//	timeline, wait, series     the report's scenarios: see package load
//	parked N      N waiters over 100 sessions wait for held locks; parked-own: with a session each
//	dead          the holder is killed: when is the lock free? disconnect: with release on disconnect
//	killed        the leader is killed with a lock held and ten waiting
//
// A rate is of whole cycles, lock and unlock. `lock` is the time from asking to having; `handoff` the time
// from one holder's unlock to the next one's lock. CPU is the servers', per thousand cycles. Jain's index
// is over whole turns. An inversion is a grant while a request waited that was earlier by 20 ms or more.
//
// # Packages
//
//	measure   records and their arithmetic       report   tables and plots
//	server    the processes                      peer     the clients
//	load      the workloads                      results  the files of past runs
//
// The closed loop and the histogram are those of `zamok bench`: package cmd/zamok/workload.
package main
