// Package overload measures a cluster under overload: an open loop at a multiple of its capacity,
// with clients that do not slow down when answers are late.
//
//	make bench-overload                             three nodes, at 1, 3 and 10 times their
//	                                                capacity
//	bench overload -zamok bin/zamok -times '2 5' -window 10s
//
// # How it is measured
//
//  1. The overloading clients are one process, limited to half of the processors; the servers may
//     use all. They speak the wire protocol, with one session per stream to the leader, and one
//     lock per cycle: acquire it, and drop it as soon as it is granted. When the leader changes,
//     they attach their sessions at the next one, as package client does, and send again every
//     command that the cluster does not know. Cycles that are due meanwhile stay due.
//  2. The capacity is their rate as a closed loop, with a limited number of concurrent cycles. Then
//     cycles are due at a multiple of that rate, as an open loop. A refusal (OVERLOADED) ends a
//     cycle. Cycles that the connections did not accept by the end of the window, or for which the
//     session has no ticket (TicketWindow of package fsm), count as unsent.
//  3. Answers are measured in the servers: zamok_answer_seconds, from the arrival of a frame to the
//     answer. An overloaded client process can't measure that. But a server can't measure how long
//     a command takes that is sent again because its stream ended. So the clients measure those
//     from their first sending, and all others too. Their times include how long a command waits in
//     its connection because the server does not read.
//  4. Meanwhile other clients, in the unlimited process, hold a lock each, and one locks and
//     unlocks all the time. They must keep their leases.
//
// # Files
//
//	overload.go  the measurement: cluster, loads, observers and the report
//	clients.go   the process of the overloading clients
//	session.go   one session of them, its cycles, and its stream to the leader
package overload
