// Bench measures zamok side by side with what people use for locks today: etcd, ZooKeeper, Redis
// and PostgreSQL, each through the client that its users use, and the older algorithms that this
// project set out to replace. It is a module of its own, so that no program that imports zamok's
// client links a library of another system.
//
//	make bench                                    everything: docs/benchmarks.md, in less than 25
//	                                              minutes
//
// Parts of it, into another folder, in less than four minutes each: 1 and 16 clients, and one lock
// for 2 and for 16; and arrivals at up to 90 % of the capacity of each system.
//
//	make bench BENCH_DOCS=/tmp/b BENCH_SYSTEMS='zamok zookeeper etcd' \
//		BENCH_WORKLOADS='own one' BENCH_CLIENTS='1 16'
//	make bench BENCH_DOCS=/tmp/b BENCH_SYSTEMS='zamok zookeeper etcd' \
//		BENCH_WORKLOADS=open BENCH_ROUNDS=2
//
// The script bench/run installs what is missing (Debian's packages; root is needed for that),
// builds zamok and etcd from source, measures, and writes the report. It calls two commands:
//
//	bench run …      measure; results are appended to a file, one JSON document per line
//	bench report …   results → tables and plots; may be repeated on an old file
//
// and the first calls two itself: `hold`, a process that holds a lock and is killed, and `echo`, a
// gRPC server with nothing behind it, whose speed is the floor of the transport.
//
// # How it is measured
//
// In rounds. In each round every system is started on an empty directory, warmed up (two seconds,
// ZooKeeper's JVMs twenty), measured with each workload, and stopped. So one system at a time runs,
// and shares the machine only with the clients. Every second round goes through the systems in
// reverse order. A ratio compares two systems of one round; the report prints the median of the
// rounds with the extremes. Systems without an aim against them take part in the first round only.
//
// # What ratios depend on
//
// At one client and on one key a system waits for its disk, each for another number of flushes in a
// row. So the ratio of two systems depends on how long a flush takes. Cycles per second of one
// client; the row of 92 µs is the run of 22 November 2026, the others were measured at commit
// 09e575f, where a commit with bbolt, the default then, was four flushes in a row (two of the
// leader, then two of the followers), twice a cycle:
//
//	write and fsync of 4 KiB   bbolt  raft-wal  etcd  ZooKeeper   bbolt over ZooKeeper
//	3 µs (tmpfs)               1 053     1 314   614        781   1.35
//	92 µs                        566       863   538        549   1.01
//	148 to 201 µs                408       630   425        514   0.79
//
// From row to row a cycle of zamok grows by eight times what the flush does, one of ZooKeeper by
// three to four times. So two runs agree only if their disks do, and each pass begins with
// measuring the disk. With windows of several lengths no difference was seen for zamok and etcd.
//
// ZooKeeper was measured after two warm-ups of 20 s: with 64 clients on own keys, and with own
// keys, one key, and opening and closing clients in turn. Cycles per second:
//
//	          own 1  own 16  own 64  own 256  one 2  one 16
//	own keys    504   1 433   2 247    3 126    594     574
//	in turn     569   2 297   3 317    4 103    687     705
//
// A minute with own keys was no better than 20 s. A likely reason, not examined, is that the JVM
// discards compiled code that meets a new case. The table by flushes above, and every result up to
// 22 November 2026, were measured after own keys alone, so their rates of ZooKeeper are probably
// too low; in this comparison own keys gave 11 to 38 % less.
//
// # What is measured
//
//	own N         N clients, each with a session and a connection, lock and unlock their own keys
//	shared 256    256 goroutines over 4 clients do the same
//	one N         N clients lock and unlock one key
//	open P        cycles of 256 clients are due at P percent of the rate that they have with own
//	              256
//	timeline, wait, series     the report's scenarios: see package load
//	parked N      N waiters over 100 sessions wait for held locks; parked-own: each with a session
//	dead          the holder is killed: when is the lock free? disconnect: with release on
//	              disconnect
//	killed        the leader is killed with a lock held and ten waiting
//
// A system called NAME-5 is NAME on five nodes; only own 1 and own 256 are measured on it.
//
// Own, shared and one are closed loops: a client makes the next call when it has the answer to the
// last one. So a system that stalls gets fewer calls, and the waits of other callers are not
// measured. Open is an open loop: the moments at which cycles are due are fixed beforehand (with
// the gaps of independent callers, from one seed, so they are the same for all systems in
// proportion to their rates). A cycle that finds no free client waits for one, and its time counts
// from when it was due.
//
// A rate is of whole cycles, lock and unlock. `lock` is the time from the request to the grant;
// `handoff` the time from one holder's unlock to the next grant. CPU is the servers', per thousand
// cycles. Jain's index is over whole rounds. An inversion is a grant while a request waited that
// was earlier by 20 ms or more.
//
// # Packages
//
//	measure   records and their arithmetic       report   tables and plots
//	server    the processes                      driver   their clients, one way to lock each
//	load      the workloads                      results  the files of past runs
//	overload  a cluster under more load than its capacity: bench overload, or make bench-overload
//	migrate   the code of the guides for users of other systems, tested
//
// The closed loop and the histogram are those of `zamok bench`: package cmd/zamok/loadgen.
package main
