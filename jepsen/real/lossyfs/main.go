package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/rpc"
	"os"
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
	h := &Host{mount: mount}
	err := errors.Join(rpc.RegisterName("Disk", h), h.Mount(0, nil))
	if err != nil {
		return err
	}
	fmt.Println("mounted")
	rpc.ServeConn(struct {
		io.Reader
		io.WriteCloser
	}{os.Stdin, os.Stdout})
	h.disk.end() // or what hangs would hang forever
	return h.unmount()
}

// Host is what has the disk: it can crash and come up again. Its exported methods are the commands, of which the
// other side gives one at a time.
type Host struct {
	mount string
	disk  *disk // nil before the first mount
}

// Mount begins a life of the disk, after a crash without faults.
func (h *Host) Mount(int, *int) error {
	if h.disk != nil {
		if !h.disk.crashed {
			return errors.New("the disk is up; nothing was changed; crash it first")
		}
		if err := h.unmount(); err != nil {
			return err
		}
	}
	d := newDisk(h.disk)
	_, err := fs.Mount(h.mount, &node{disk: d, inode: d.root}, &fs.Options{MountOptions: fuse.MountOptions{
		FsName: "lossyfs", Name: "lossyfs", DirectMountStrict: true, MaxWrite: 1 << 20,
		// Nothing else changes the files, so the kernel need not throw away its pages when a time changed.
		ExplicitDataCacheControl: true,
	}})
	if err != nil {
		return fmt.Errorf("can't mount on %s: %w", h.mount, err)
	}
	h.disk = d
	return nil
}

// unmount takes the disk off its place. A process that has a file of it open keeps a disk that is dead.
func (h *Host) unmount() error { return syscall.Unmount(h.mount, syscall.MNT_DETACH) }

var errCrashed = errors.New("the disk has crashed; nothing was changed; mount it first")

// SetFaults replaces all faults, by none if they are empty.
func (h *Host) SetFaults(f Faults, _ *int) error {
	if h.disk.crashed {
		return errCrashed
	}
	h.disk.setFaults(f)
	return nil
}

// Hanging counts the operations that hang.
func (h *Host) Hanging(_ int, n *int) error {
	h.disk.mu.Lock()
	defer h.disk.mu.Unlock()
	*n = h.disk.hanging
	return nil
}

// Crash takes what was not flushed: with a seed some of it, with 0 all.
func (h *Host) Crash(seed uint64, lost *CrashLoss) error {
	if h.disk.crashed {
		return errCrashed
	}
	var dice *rand.Rand
	if seed != 0 {
		dice = rand.New(rand.NewPCG(seed, 0))
	}
	*lost = h.disk.crash(dice)
	return nil
}
