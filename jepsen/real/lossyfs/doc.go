// Lossyfs is a disk that fails on command, and that loses in a crash what was not flushed.
//
//	lossyfs -mount DIR
//
// It is a FUSE file system that keeps everything in memory, and needs root and /dev/fuse. It is a
// module of its own, so that nothing else of the repository depends on FUSE. Package
// jepsen/real/disk builds, starts and commands it: by net/rpc over standard input and output. The
// first command mounts it. At the end of the input it is unmounted and the program ends, so it ends
// also when the process that started it is killed.
//
// # What a crash takes
//
// L1. The pages (4 KiB) of a file that were written or cut off since its last fsync (or fdatasync)
// fall back to what they were then, and so does its length. Without a seed all of them do; with a
// seed each for itself does or does not, as the seed decides, in no order.
//
// L2. Names made, removed or moved fall back too, unless a folder that they were in was flushed
// since. With a seed the first of these changes are kept and the later ones undone: file systems
// keep names in a journal. An fsync of a file says nothing about its name; ext4 and others are
// kinder.
//
// L3. A flush that failed has dropped what it could not write, as Linux does: later flushes
// succeed, and those pages are lost in the next crash all the same, unless they were written once
// more in between.
//
// L4. From the crash on every operation but close fails with EIO, also those that hung, until the
// disk is mounted anew. A process that still has a file of the former life open gets EIO for the
// rest of its time: no process survives the crash of its machine.
//
// # What it relies on
//
// bbolt writes with pwrite and reads through a shared map. So files are cached by the kernel, which
// writes through: it changes its pages and asks this program in the same call. The map and the
// writes are one, and nothing reaches the disk later than it seems to. After a crash everything is
// mounted anew, so that no page or name of the former life is left in a cache. Locks (flock) are
// kept by the kernel.
//
// A process with a call that hangs can't be killed, as with a real disk: heal or crash first, then
// wait for its end.
//
// Not there: links of both kinds, devices, owners, extended attributes, holes punched.
//
// # Files
//
//	main.go  the commands: mounting, faults, crashes
//	disk.go  the disk, and the changes of names that a crash undoes
//	inode.go files and folders, and what a crash brings back of them
//	node.go  what the kernel asks for, and what faults do to it
package main
