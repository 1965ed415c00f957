// Package driver acquires locks of each of the systems, by the client library and in the way that
// its manual shows. One System is one such way; two systems may run on the same servers.
//
//  1. A Client is one session with its own connections, and ends with Close.
//  2. A system takes part only in the workloads that it supports, as the report shows. If the usual
//     client lacks a call (TryLock on ZooKeeper), the driver uses the manual's recipe, and
//     System.Notes says so.
//  3. Settings are each client's defaults, except the lease, which is the same for all systems that
//     have one (System.ExpiresHolders).
package driver
