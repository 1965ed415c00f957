// Package peer takes locks on each of the systems, by the client that its users use and in the way
// that its manual shows. One System is one such way; two systems may run on the same server.
//
//  1. A Client is one session with its own connections, and ends with Close.
//  2. What a system does not have is not imitated: it is left out of that workload, as the
//     report shows. Where the usual client lacks a call (TryLock on ZooKeeper), the manual's recipe stands in
//     as System.Notes mentions.
//  3. Settings are each client's defaults, but the lease, which is the same for all (System.ExpiresHolders: whether there
//     is one).
package peer
