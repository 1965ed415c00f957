package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"zamok/jepsen/real/disk"
)

// disks are those of the nodes, if there are others than the machine's own.
type disks struct {
	shelf *disk.Shelf // nil: the machine's own

	mu    sync.Mutex
	lossy map[string]*disk.Disk // by node
	small map[string]*disk.Small
}

const (
	// diskBytes is what a node's disk has room for. The nodes want some hundred MiB of it free.
	diskBytes = 1 << 30
	// hangMost is longer than a leader's watchdog waits: 3 s, and up to 2 s more by node.
	hangMost = 7 * time.Second
	// allHang is how long all disks hang at once.
	allHang = 4 * time.Second
	// aboutToFail is how long disks are slow before the power fails, so that it fails in the middle of things.
	aboutToFail = 300 * time.Millisecond
)

// diskKinds are the faults of disks.
func diskKinds() []kind {
	return []kind{
		{"slow disk of a follower", slowDisk(false)},
		{"slow disk of the leader", slowDisk(true)},
		{"hung disk of a follower", hungDisk(false)},
		{"hung disk of the leader", hungDisk(true)},
		{"all disks hang", (*faults).allDisksHang},
		{"disk of a follower fails", failingDisk(false)},
		{"disk of the leader fails", failingDisk(true)},
		{"disk of a follower is full", fullDisk(false)},
		{"disk of the leader is full", fullDisk(true)},
		{"all disks are full", (*faults).allDisksFull},
		{"power of the leader fails", powerOfOne(true)},
		{"power of a follower fails", powerOfOne(false)},
		{"power of all fails", (*faults).powerOfAll},
	}
}

// openDisks prepares disks that can fail. Where that can't be done the run goes on without, and says so.
func (c *cluster) openDisks(ctx context.Context) error {
	shelf, err := disk.Open(ctx, filepath.Join(c.dir, "data"))
	if errors.Is(err, disk.ErrNotHere) {
		c.say("SKIPPED: all faults of disks: %v", err)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.said = append(c.said, fmt.Sprintf("No faults of disks: %v.", err))
		return nil
	}
	if err != nil {
		return err
	}
	c.disks = disks{shelf: shelf, lossy: map[string]*disk.Disk{}, small: map[string]*disk.Small{}}
	return nil
}

// dataOf is where a node is to keep its data; its disk is mounted first.
func (c *cluster) dataOf(id string) (string, error) {
	if c.disks.shelf == nil {
		return filepath.Join(c.dir, "data", id), nil
	}
	small, err := c.disks.shelf.Small(id+".backing", diskBytes)
	if err != nil {
		return "", err
	}
	lossy, err := c.disks.shelf.Lossy(id, small)
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
	if c.disks.shelf == nil {
		return
	}
	for id, small := range c.disks.small {
		to := filepath.Join(c.dir, "data", id+".copy")
		if err := os.CopyFS(to, os.DirFS(filepath.Join(small.Dir(), "tree"))); err != nil {
			c.say("what was on the disk of %s is not kept: %v", id, err)
		}
	}
	if err := c.disks.shelf.Close(); err != nil {
		c.say("%v", err)
	}
}

// onDisks does something to the disks of nodes, and tells whether that was possible.
func (f *faults) onDisks(nodes []*node, do func(*disk.Disk) error) bool {
	f.disks.mu.Lock()
	defer f.disks.mu.Unlock()
	for _, n := range nodes {
		if err := do(f.disks.lossy[n.id]); err != nil {
			f.say("%v", err)
			return false
		}
	}
	return true
}

// struck makes disks ill, lets time pass, makes them well and waits for the nodes, some of which may have
// ended because of it.
func (f *faults) struck(t *turn, nodes []*node, lasts time.Duration, ill func(*disk.Disk) error) string {
	if len(nodes) == 0 || !f.onDisks(nodes, ill) {
		return ""
	}
	pause(t.ctx, lasts)
	f.onDisks(nodes, (*disk.Disk).Heal)
	f.answering(nodes)
	return names(nodes)
}

// answering waits until nodes answer that nobody holds down.
func (f *faults) answering(nodes []*node) {
	for _, n := range nodes {
		if !f.ready(n) {
			f.say("%s does not answer %v after its disk was made well", n.id, readyMost)
		}
	}
}

func slowDisk(leads bool) func(*faults, *turn) string {
	return func(f *faults, t *turn) string {
		each := 10*time.Millisecond + upTo(t.Rand, 200*time.Millisecond)
		return f.struck(t, f.take(t, leads, 1), t.lasts, func(d *disk.Disk) error { return d.Delay(0, each) })
	}
}

// hungDisk lets all writes hang, sometimes for longer than a leader may endure.
func hungDisk(leads bool) func(*faults, *turn) string {
	return func(f *faults, t *turn) string {
		lasts := time.Second + upTo(t.Rand, hangMost-time.Second)
		return f.struck(t, f.take(t, leads, 1), lasts, (*disk.Disk).Stall)
	}
}

func (f *faults) allDisksHang(t *turn) string {
	return f.struck(t, f.takeAny(t, len(f.members())), allHang, (*disk.Disk).Stall)
}

// failingDisk fails one operation. The node ends itself, and is started again.
func failingDisk(leads bool) func(*faults, *turn) string {
	return func(f *faults, t *turn) string {
		op := []disk.Op{disk.Writes, disk.Fsyncs}[t.IntN(2)]
		return f.struck(t, f.take(t, leads, 1), t.lasts, func(d *disk.Disk) error { return d.Fail(op, 1) })
	}
}

// fullDisk is full for real: what is behind the disk has no block left.
func fullDisk(leads bool) func(*faults, *turn) string {
	return func(f *faults, t *turn) string { return f.fill(t, f.take(t, leads, 1)) }
}

func (f *faults) allDisksFull(t *turn) string {
	return f.fill(t, f.takeAny(t, len(f.members())))
}

func (f *faults) fill(t *turn, nodes []*node) string {
	for _, n := range nodes {
		if err := f.small(n).Fill(); err != nil {
			f.say("the disk of %s is not full: %v", n.id, err)
		}
	}
	pause(t.ctx, t.lasts)
	for _, n := range nodes {
		if err := f.small(n).Empty(); err != nil {
			f.say("the disk of %s stays full: %v", n.id, err)
		}
	}
	f.answering(nodes)
	return names(nodes)
}

func (f *faults) small(n *node) *disk.Small {
	f.disks.mu.Lock()
	defer f.disks.mu.Unlock()
	return f.disks.small[n.id]
}

func powerOfOne(leads bool) func(*faults, *turn) string {
	return func(f *faults, t *turn) string { return f.powerFails(t, f.take(t, leads, 1)) }
}

func (f *faults) powerOfAll(t *turn) string {
	t.lasts /= 2
	return f.powerFails(t, f.takeAny(t, len(f.members())))
}

// powerFails crashes machines: the processes end, and of what was not flushed the disks keep what they like.
func (f *faults) powerFails(t *turn, nodes []*node) string {
	slow := func(d *disk.Disk) error { return d.Delay(0, 20*time.Millisecond) }
	if len(nodes) == 0 || !f.onDisks(nodes, slow) {
		return ""
	}
	pause(t.ctx, aboutToFail)
	for _, n := range nodes {
		if p := n.hold(); p != nil {
			p.signal(syscall.SIGKILL)
		}
	}
	keep := []disk.Keep{disk.KeepNothing, disk.KeepSome, disk.KeepSome}[t.IntN(3)]
	var all disk.Lost
	f.onDisks(nodes, func(d *disk.Disk) error {
		lost, err := d.Crash(keep, t.Uint64())
		all.Pages, all.KeptPages = all.Pages+lost.Pages, all.KeptPages+lost.KeptPages
		all.Names, all.KeptNames = all.Names+lost.Names, all.KeptNames+lost.KeptNames
		return err
	})
	for _, n := range nodes {
		n.kill() // waits for its end, which nothing holds up now
	}
	f.onDisks(nodes, (*disk.Disk).Up)
	f.say("the power of %s failed: %+v", names(nodes), all)
	pause(t.ctx, t.lasts)
	f.restart(nodes...)
	return names(nodes)
}
