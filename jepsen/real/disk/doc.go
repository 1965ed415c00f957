// Package disk gives the nodes of a fault run disks that fail.
//
//	pool, err := disk.Open(ctx, dir)       // needs root; see ErrUnsupported
//	d, err := pool.AddLossy("n1", nil)      // d.Dir() is for --data
//	d.Delay(30*time.Millisecond)            // each fsync
//	lost, err := d.CrashSome(7)             // the machine of n1, whose process has been killed, loses its power
//	d.Remount()
//	pool.Close()
//
// A LossyDisk is a program of its own, lossyfs, in the module jepsen/real/lossyfs: its documentation says what a
// crash takes and what each fault does. Open builds it. A SmallDisk is a tmpfs, which can be full for real; a LossyDisk
// may keep what it holds on one.
//
// D1. All is mounted in a mount namespace of the process (Isolate), which ends with it, however it ends. Close
// unmounts, and waits for each lossyfs.
//
// # In which order
//
// A process with a call that hangs can't be killed: Heal or Crash first, then wait for its end. For a crash
// of a whole cluster kill all processes, wait, crash all disks, let all come up, start the processes.
package disk
