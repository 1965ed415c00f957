// Package disk gives the nodes of a fault run disks that fail.
//
//	shelf, err := disk.Open(ctx, dir)       // needs root; see ErrUnsupported
//	d, err := shelf.Lossy("n1", nil)        // d.Dir() is for --data
//	d.Delay(0, 30*time.Millisecond)         // each fsync
//	lost, err := d.Crash(disk.KeepSome, 7)  // the machine of n1, whose process has been killed, loses its power
//	d.Up()
//	shelf.Close()
//
// A Disk is a program of its own, lossyfs, in the module jepsen/real/lossyfs: its documentation says what a
// crash takes and what each fault does. Open builds it. A Small is a tmpfs, which can be full for real; a Disk
// may keep what it holds on one.
//
// # Who cleans up
//
// D1. Close unmounts what the shelf has mounted. When the process is killed, each lossyfs is told so by the
// end of its input, and unmounts itself.
//
// D2. What is left even then (a tmpfs; the mount of a lossyfs that was itself killed) carries the name of its
// run (cleanup.go). Open removes the mounts of dead runs, and no others.
//
// # In which order
//
// A process with a call that hangs can't be killed: Resume or Crash first, then wait for its end. For a crash
// of a whole cluster kill all processes, wait, crash all disks, let all come up, start the processes.
package disk
