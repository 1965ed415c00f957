// Package overload measures what a cluster does when its clients ask for more than it can do: at a multiple of its
// capacity, open loop, with clients that do not slow down because their answers are late.
//
//	make bench-overload                             three nodes, at 1, 3 and 10 times their capacity
//	bench overload -zamok bin/zamok -times '2 5' -window 10s
//
// # How it is measured
//
//  1. The clients that ask for too much are a process of its own, which may use half of the processors and no more; the
//     servers may use all. They speak the protocol itself, one session on each stream to the leader, and a lock of its own for each
//     cycle: acquire, drop as soon as it is granted.
//  2. Capacity is what they reach as a closed loop, with a limited number of cycles at a time. Then as many cycles a second as a
//     multiple of it are due, whether others have ended or not. A refusal (OVERLOADED) ends a cycle without work. What the
//     connections did not take by the end of the window is counted: unsent.
//  3. Answers are measured where they are given: zamok_answer_seconds of the leader, from the arrival of a frame to the answer, in
//     the window. An overloaded client process can't measure that.
//  4. Beside them, in the process that is not limited, other clients hold a lock each, and one locks and unlocks all the
//     time. None of them may lose its lease.
//
// clients.go is the process of the clients, overload.go everything else.
package overload
