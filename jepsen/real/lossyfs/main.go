package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/rpc"
	"os"
	"slices"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

func main() {
	mount := flag.String("mount", "", "where the disk appears")
	flag.Parse()
	if err := run(*mount); err != nil {
		fmt.Fprintln(os.Stderr, "lossyfs:", err)
		os.Exit(1)
	}
}

// run serves the disk until the commands end.
func run(mount string) error {
	d := newDisk(mount)
	if err := rpc.RegisterName("Disk", d); err != nil {
		return err
	}
	rpc.ServeConn(struct {
		io.Reader
		io.WriteCloser
	}{os.Stdin, os.Stdout})
	// or what hangs would hang forever; its error is that nothing is up
	_ = d.Crash(0, new(CrashLoss))
	return d.unmount()
}

// Mount begins a life of the disk, the first one or after a crash.
func (d *disk) Mount(int, *int) error {
	if d.mounted == d.life {
		return errors.New("the disk is up; nothing was changed; crash it first")
	}
	if err := d.unmount(); err != nil {
		return err
	}
	_, err := fs.Mount(d.mount, &node{disk: d, life: d.life, inode: d.root},
		&fs.Options{MountOptions: fuse.MountOptions{
			FsName: "lossyfs", Name: "lossyfs", DirectMountStrict: true, MaxWrite: 1 << 20,
			// Nothing else changes the files, so the kernel need not throw away its pages when a
			// time changed.
			ExplicitDataCacheControl: true,
		}})
	if err != nil {
		return fmt.Errorf("can't mount on %s: %w", d.mount, err)
	}
	d.mounted = d.life
	return nil
}

// unmount takes the disk off its place. A process that has a file of it open keeps a disk that is
// dead.
func (d *disk) unmount() error {
	if d.mounted == 0 {
		return nil
	}
	return syscall.Unmount(d.mount, syscall.MNT_DETACH)
}

var errCrashed = errors.New("the disk has crashed; nothing was changed; mount it first")

// SetFaults replaces all faults, by none if they are empty. What hangs is done when the disk does
// not stall any more.
func (d *disk) SetFaults(f Faults, _ *int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mounted != d.life {
		return errCrashed
	}
	d.faults, d.capacity = f, diskPages
	if f.Full {
		d.capacity = d.used()
	}
	d.changed.Broadcast()
	return nil
}

// Crash ends this life and its faults, and takes what was not flushed (L1, L2, L4): with a seed
// some of it, with 0 all.
func (d *disk) Crash(seed uint64, lost *CrashLoss) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mounted != d.life {
		return errCrashed
	}
	var dice *rand.Rand // nil: nothing is kept
	if seed != 0 {
		dice = rand.New(rand.NewPCG(seed, 0))
		lost.KeptNames = dice.IntN(len(d.pending) + 1)
	}
	lost.Names = len(d.pending) - lost.KeptNames
	for _, c := range slices.Backward(d.pending[lost.KeptNames:]) {
		c.undo()
	}
	d.root.each(func(f *inode) { f.crash(dice, lost) })
	d.life, d.pending, d.faults, d.capacity = d.life+1, nil, Faults{}, diskPages
	d.changed.Broadcast()
	return nil
}
