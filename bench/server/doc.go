// Package server runs the systems that are compared: real processes on loopback with real data
// directories, three nodes (or five) if a system has several.
//
//  1. It ends every process that it starts, by its pid, and waits for it.
//  2. Settings are those of the system's manual for the guarantee that the report names, and all
//     are in this package's table of commands. Nothing is tuned for one system alone.
//  3. What a system costs is read from the kernel (/proc), for all its processes and their children
//     together: a system that hides work in another process does not look cheap.
//  4. It links no system's library: etcd's server is built from source by the go command, the
//     others are the distribution's packages.
package server
