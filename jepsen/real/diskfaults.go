package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"zamok/jepsen/real/disk"
)

const (
	// hangMax is longer than a leader's watchdog waits: 3 s, and up to 2 s more by node.
	hangMax = 7 * time.Second
	// allDisksHangFor is how long all disks hang at once.
	allDisksHangFor = 4 * time.Second
	// slowBeforePowerFailure is how long disks are slow before the power fails, so that it fails in the middle of things.
	slowBeforePowerFailure = 300 * time.Millisecond
)

// openDisks prepares disks that can fail. Where they are not supported the run continues without, with a note in its report.
func (c *cluster) openDisks(ctx context.Context) error {
	pool, err := disk.Open(ctx, filepath.Join(c.dir, "data"))
	if errors.Is(err, disk.ErrUnsupported) {
		c.logf("SKIPPED: all faults of disks: %v", err)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.notes = append(c.notes, fmt.Sprintf("No faults of disks: %v.", err))
		return nil
	}
	if err != nil {
		return err
	}
	c.disks = pool
	return nil
}

// dataDir is where a node is to keep its data; its disk is mounted first.
func (c *cluster) dataDir(id string) (dir string, d *disk.Disk, err error) {
	if c.disks == nil {
		return filepath.Join(c.dir, "data", id), nil, nil
	}
	if d, err = c.disks.Add(id); err != nil {
		return "", nil, err
	}
	return filepath.Join(d.Dir, "data"), d, nil
}

// closeDisks takes the disks off; what was on them is copied, because it may explain what is wrong.
func (c *cluster) closeDisks() {
	if c.disks == nil {
		return
	}
	for _, n := range c.nodes {
		if err := os.CopyFS(n.disk.Dir+".copy", os.DirFS(n.disk.Dir)); err != nil {
			c.logf("what was on the disk of %s is not kept: %v", n.id, err)
		}
	}
	if err := c.disks.Close(); err != nil {
		c.logf("%v", err)
	}
}

// onDisks does something to the disks of nodes.
func onDisks(nodes []*node, do func(*disk.Disk) error) (err error) {
	for _, n := range nodes {
		err = errors.Join(err, do(n.disk))
	}
	return err
}

func setFaults(nodes []*node, faults disk.Faults) error {
	return onDisks(nodes, func(d *disk.Disk) error { return d.SetFaults(faults) })
}

// breakDisks breaks disks for a while, and waits for the nodes, some of which may have ended because of it.
func (f *nemesis) breakDisks(t *injection, nodes []*node, faults disk.Faults) error {
	if err := setFaults(nodes, faults); err != nil {
		return err
	}
	sleepContext(t.ctx, t.duration)
	err := setFaults(nodes, disk.Faults{})
	f.awaitAnswers(nodes...)
	return err
}

func (f *nemesis) slowDisks(t *injection, nodes []*node) error {
	return f.breakDisks(t, nodes, disk.Faults{FsyncDelay: 10*time.Millisecond + t.upTo(200*time.Millisecond)})
}

// hangDisks makes all writes hang, sometimes for longer than a leader may endure.
func (f *nemesis) hangDisks(t *injection, nodes []*node) error {
	t.duration = time.Second + t.upTo(hangMax-time.Second)
	return f.breakDisks(t, nodes, disk.Faults{Stall: true})
}

func (f *nemesis) hangAllDisks(t *injection, nodes []*node) error {
	t.duration = allDisksHangFor
	return f.breakDisks(t, nodes, disk.Faults{Stall: true})
}

// failDisks fails one operation. The node ends itself, and is started again.
func (f *nemesis) failDisks(t *injection, nodes []*node) error {
	write := t.IntN(2) == 0
	return f.breakDisks(t, nodes, disk.Faults{FailWrite: write, FailFsync: !write})
}

// fillDisks leaves no room on the disks.
func (f *nemesis) fillDisks(t *injection, nodes []*node) (err error) {
	return f.breakDisks(t, nodes, disk.Faults{Full: true})
}

// failPower crashes machines: the processes end, and of what was not flushed the disks lose all or some.
func (f *nemesis) failPower(t *injection, nodes []*node) error {
	if err := setFaults(nodes, disk.Faults{FsyncDelay: 20 * time.Millisecond}); err != nil {
		return err
	}
	sleepContext(t.ctx, slowBeforePowerFailure)
	killAtOnce(nodes)
	some := t.IntN(3) > 0
	err := onDisks(nodes, func(d *disk.Disk) error {
		seed := uint64(0)
		if some {
			seed = t.Uint64()
		}
		lost, err := d.Crash(seed)
		f.logf("the power of %s fails: %+v", d.Dir, lost)
		return err
	})
	for _, n := range nodes {
		n.kill() // waits for its end, which nothing holds up now
	}
	err = errors.Join(err, onDisks(nodes, (*disk.Disk).Mount))
	sleepContext(t.ctx, t.duration)
	f.restart(nodes...)
	return err
}
