// Package load is the workloads: what the clients do, and what is seen of it from where they stand.
//
//  1. A workload sees a system only through peer.Client, so all are asked the same.
//  2. Loops are closed: a client asks again when it was answered. Only Open is an open loop, in which cycles are due
//     at moments of their own and are late from then on. Both are measured over a window that begins after a
//     quarter of it has passed unmeasured.
//  3. Simultaneous holders of an exclusive lock are counted in every workload, of every system.
//  4. Failures are counted and reported (values errors and failed), never left out of a denominator.
//  5. Every wait has a limit. Who is still stuck after it has its connections closed.
package load
