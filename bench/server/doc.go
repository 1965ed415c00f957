// Package server runs the systems that are compared: real processes on loopback with real data
// directories, three nodes (five, if asked) where a system has them.
//
//  1. Every process that it starts it also ends, by its own number, and waits for it.
//  2. Settings are those that the system's manual gives for the guarantee that is claimed for it, and
//     all are in this package's table of commands. Nothing is tuned for one system alone.
//  3. What a system costs is read from the kernel (/proc), for all its processes and their children
//     together: a system that hides work in another process does not look cheap.
//  4. It links no system's library: etcd's server is built from source by the go command, the others
//     are the distribution's packages.
package server
