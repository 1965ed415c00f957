// Package disk gives the nodes of a fault run disks that fail.
//
//	err := disk.Isolate()                  // once, at the beginning of the program: needs root
//	pool, err := disk.Open(ctx, dir)       // see ErrUnsupported
//	d, err := pool.Add("n1")               // d.Dir is for --data
//	d.SetFaults(disk.Faults{FsyncDelay: 30*time.Millisecond})
//	lost, err := d.Crash(7)                // n1 loses its power; its process has been killed
//	d.Mount()
//	d.Close()
//
// A Disk is a program of its own, lossyfs, in the module jepsen/real/lossyfs: its documentation
// says what a crash takes. Open builds it. It is never served by the process that uses it: a
// process that waits for itself hangs, and can't be killed.
//
// D1. All is mounted in a mount namespace of the process (Isolate), which ends with it, however it
// ends. Close unmounts, and waits for each lossyfs.
//
// # In which order
//
// A process with a call that hangs can't be killed: end the faults or crash first, then wait for
// its end. For a crash of a whole cluster kill all processes, wait, crash all disks, mount all
// anew, start the processes.
package disk
