package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"zamok/jepsen/real/disk"
)

// faultyDisks are those of the nodes, if there are others than the machine's own.
type faultyDisks struct {
	pool *disk.Pool // nil: the machine's own

	mu    sync.Mutex
	lossy map[string]*disk.LossyDisk // by node
	small map[string]*disk.SmallDisk
}

const (
	// diskBytes is what a node's disk has room for. The nodes want some hundred MiB of it free.
	diskBytes = 1 << 30
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
	c.disks = faultyDisks{pool: pool, lossy: map[string]*disk.LossyDisk{}, small: map[string]*disk.SmallDisk{}}
	return nil
}

// dataDir is where a node is to keep its data; its disk is mounted first.
func (c *cluster) dataDir(id string) (string, error) {
	if c.disks.pool == nil {
		return filepath.Join(c.dir, "data", id), nil
	}
	small, err := c.disks.pool.AddSmall(id+".backing", diskBytes)
	if err != nil {
		return "", err
	}
	lossy, err := c.disks.pool.AddLossy(id, small)
	if err != nil {
		return "", err
	}
	c.disks.mu.Lock()
	defer c.disks.mu.Unlock()
	c.disks.small[id], c.disks.lossy[id] = small, lossy
	return filepath.Join(lossy.Dir(), "data"), nil
}

// closeDisks takes the disks off; what was on them is copied, because it may explain what is wrong.
func (c *cluster) closeDisks() {
	if c.disks.pool == nil {
		return
	}
	for id, small := range c.disks.small {
		to := filepath.Join(c.dir, "data", id+".copy")
		if err := os.CopyFS(to, os.DirFS(filepath.Join(small.Dir(), "tree"))); err != nil {
			c.logf("what was on the disk of %s is not kept: %v", id, err)
		}
	}
	if err := c.disks.pool.Close(); err != nil {
		c.logf("%v", err)
	}
}

// onDisks does something to the disks of nodes.
func (f *nemesis) onDisks(nodes []*node, do func(*disk.LossyDisk) error) (err error) {
	f.disks.mu.Lock()
	defer f.disks.mu.Unlock()
	for _, n := range nodes {
		err = errors.Join(err, do(f.disks.lossy[n.id]))
	}
	return err
}

// breakDisks breaks disks for a while, and waits for the nodes, some of which may have ended because of it.
func (f *nemesis) breakDisks(t *injection, nodes []*node, do func(*disk.LossyDisk) error) error {
	if err := f.onDisks(nodes, do); err != nil {
		return err
	}
	sleepContext(t.ctx, t.duration)
	err := f.onDisks(nodes, (*disk.LossyDisk).Heal)
	f.awaitAnswers(nodes...)
	return err
}

func (f *nemesis) slowDisks(t *injection, nodes []*node) error {
	each := 10*time.Millisecond + t.upTo(200*time.Millisecond)
	return f.breakDisks(t, nodes, func(d *disk.LossyDisk) error { return d.Delay(each) })
}

// hangDisks makes all writes hang, sometimes for longer than a leader may endure.
func (f *nemesis) hangDisks(t *injection, nodes []*node) error {
	t.duration = time.Second + t.upTo(hangMax-time.Second)
	return f.breakDisks(t, nodes, (*disk.LossyDisk).Stall)
}

func (f *nemesis) hangAllDisks(t *injection, nodes []*node) error {
	t.duration = allDisksHangFor
	return f.breakDisks(t, nodes, (*disk.LossyDisk).Stall)
}

// failDisks fails one operation. The node ends itself, and is started again.
func (f *nemesis) failDisks(t *injection, nodes []*node) error {
	op := []disk.Op{disk.Writes, disk.Fsyncs}[t.IntN(2)]
	return f.breakDisks(t, nodes, func(d *disk.LossyDisk) error { return d.FailNext(op) })
}

// fillDisks leaves no block free behind the disks.
func (f *nemesis) fillDisks(t *injection, nodes []*node) (err error) {
	onEach := func(do func(*disk.SmallDisk) error) {
		f.disks.mu.Lock()
		defer f.disks.mu.Unlock()
		for _, n := range nodes {
			err = errors.Join(err, do(f.disks.small[n.id]))
		}
	}
	onEach((*disk.SmallDisk).Fill)
	sleepContext(t.ctx, t.duration)
	onEach((*disk.SmallDisk).Empty)
	f.awaitAnswers(nodes...)
	return err
}

// failPower crashes machines: the processes end, and of what was not flushed the disks lose all or some.
func (f *nemesis) failPower(t *injection, nodes []*node) error {
	err := f.onDisks(nodes, func(d *disk.LossyDisk) error { return d.Delay(20 * time.Millisecond) })
	if err != nil {
		return err
	}
	sleepContext(t.ctx, slowBeforePowerFailure)
	killAtOnce(nodes)
	crash := (*disk.LossyDisk).Crash
	if t.IntN(3) > 0 {
		crash = func(d *disk.LossyDisk) (disk.CrashLoss, error) { return d.CrashSome(t.Uint64()) }
	}
	err = f.onDisks(nodes, func(d *disk.LossyDisk) error {
		lost, err := crash(d)
		f.logf("the power of %s fails: %+v", d.Dir(), lost)
		return err
	})
	for _, n := range nodes {
		n.kill() // waits for its end, which nothing holds up now
	}
	err = errors.Join(err, f.onDisks(nodes, (*disk.LossyDisk).Remount))
	sleepContext(t.ctx, t.duration)
	f.restart(nodes...)
	return err
}
