// Package load is the workloads: what the clients do, and what they measure.
//
//  1. A workload uses a system only through driver.Client, so all systems get the same calls.
//  2. Loops are closed: a client makes the next call when it has the answer to the last one. Only
//     Open is an open loop, in which each cycle is due at a fixed moment and late from then on.
//     Both are measured over a window, after a warm-up of a quarter of it.
//  3. Simultaneous holders of an exclusive lock are counted in every workload, of every system.
//  4. Failures are counted and reported (values errors and failed), and are part of every
//     denominator.
//  5. Every wait has a time limit, after which the connections of those that still wait are closed.
package load
