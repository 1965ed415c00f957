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

// diskKinds are the faults of disks.
func diskKinds() []faultKind {
	return []faultKind{
		{"slow disk of a follower", slowDisk(false)},
		{"slow disk of the leader", slowDisk(true)},
		{"hung disk of a follower", hungDisk(false)},
		{"hung disk of the leader", hungDisk(true)},
		{"all disks hang", (*nemesis).allDisksHang},
		{"disk of a follower fails", failingDisk(false)},
		{"disk of the leader fails", failingDisk(true)},
		{"disk of a follower is full", fullDisk(false)},
		{"disk of the leader is full", fullDisk(true)},
		{"all disks are full", (*nemesis).allDisksFull},
		{"power of the leader fails", powerFailureOne(true)},
		{"power of a follower fails", powerFailureOne(false)},
		{"power of all fails", (*nemesis).powerFailureAll},
	}
}

// openDisks prepares disks that can fail. Where that can't be done the run continues without, and says so.
func (c *cluster) openDisks(ctx context.Context) error {
	shelf, err := disk.Open(ctx, filepath.Join(c.dir, "data"))
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
	c.disks = faultyDisks{pool: shelf, lossy: map[string]*disk.LossyDisk{}, small: map[string]*disk.SmallDisk{}}
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

// onDisks does something to the disks of nodes, and reports whether that was possible.
func (f *nemesis) onDisks(nodes []*node, do func(*disk.LossyDisk) error) bool {
	f.disks.mu.Lock()
	defer f.disks.mu.Unlock()
	for _, n := range nodes {
		if err := do(f.disks.lossy[n.id]); err != nil {
			f.logf("%v", err)
			return false
		}
	}
	return true
}

// withDiskFault makes disks ill, lets time pass, makes them well and waits for the nodes, some of which may have
// ended because of it.
func (f *nemesis) withDiskFault(t *injection, nodes []*node, lasts time.Duration, breakDisk func(*disk.LossyDisk) error) string {
	if len(nodes) == 0 || !f.onDisks(nodes, breakDisk) {
		return ""
	}
	sleepContext(t.ctx, lasts)
	f.onDisks(nodes, (*disk.LossyDisk).Heal)
	f.awaitAnswers(nodes)
	return nodeNames(nodes)
}

// awaitAnswers waits until nodes answer that nobody holds down.
func (f *nemesis) awaitAnswers(nodes []*node) {
	for _, n := range nodes {
		if !f.awaitAnswer(n) {
			f.logf("%s does not answer %v after its disk was made well", n.id, nodeReadyTimeout)
		}
	}
}

func slowDisk(leads bool) func(*nemesis, *injection) string {
	return func(f *nemesis, t *injection) string {
		each := 10*time.Millisecond + randomDuration(t.Rand, 200*time.Millisecond)
		return f.withDiskFault(t, f.acquireNodes(t, leads, 1), t.duration, func(d *disk.LossyDisk) error { return d.Delay(each) })
	}
}

// hungDisk lets all writes hang, sometimes for longer than a leader may endure.
func hungDisk(leads bool) func(*nemesis, *injection) string {
	return func(f *nemesis, t *injection) string {
		lasts := time.Second + randomDuration(t.Rand, hangMax-time.Second)
		return f.withDiskFault(t, f.acquireNodes(t, leads, 1), lasts, (*disk.LossyDisk).Stall)
	}
}

func (f *nemesis) allDisksHang(t *injection) string {
	return f.withDiskFault(t, f.acquireAnyNodes(t, len(f.members())), allDisksHangFor, (*disk.LossyDisk).Stall)
}

// failingDisk fails one operation. The node ends itself, and is started again.
func failingDisk(leads bool) func(*nemesis, *injection) string {
	return func(f *nemesis, t *injection) string {
		op := []disk.Op{disk.Writes, disk.Fsyncs}[t.IntN(2)]
		return f.withDiskFault(t, f.acquireNodes(t, leads, 1), t.duration, func(d *disk.LossyDisk) error { return d.FailNext(op) })
	}
}

// fullDisk is full for real: what is behind the disk has no block left.
func fullDisk(leads bool) func(*nemesis, *injection) string {
	return func(f *nemesis, t *injection) string { return f.fillDisks(t, f.acquireNodes(t, leads, 1)) }
}

func (f *nemesis) allDisksFull(t *injection) string {
	return f.fillDisks(t, f.acquireAnyNodes(t, len(f.members())))
}

func (f *nemesis) fillDisks(t *injection, nodes []*node) string {
	for _, n := range nodes {
		if err := f.smallDisk(n).Fill(); err != nil {
			f.logf("the disk of %s is not full: %v", n.id, err)
		}
	}
	sleepContext(t.ctx, t.duration)
	for _, n := range nodes {
		if err := f.smallDisk(n).Empty(); err != nil {
			f.logf("the disk of %s stays full: %v", n.id, err)
		}
	}
	f.awaitAnswers(nodes)
	return nodeNames(nodes)
}

func (f *nemesis) smallDisk(n *node) *disk.SmallDisk {
	f.disks.mu.Lock()
	defer f.disks.mu.Unlock()
	return f.disks.small[n.id]
}

func powerFailureOne(leads bool) func(*nemesis, *injection) string {
	return func(f *nemesis, t *injection) string { return f.failPower(t, f.acquireNodes(t, leads, 1)) }
}

func (f *nemesis) powerFailureAll(t *injection) string {
	t.duration /= 2
	return f.failPower(t, f.acquireAnyNodes(t, len(f.members())))
}

// failPower crashes machines: the processes end, and of what was not flushed the disks keep what they like.
func (f *nemesis) failPower(t *injection, nodes []*node) string {
	slow := func(d *disk.LossyDisk) error { return d.Delay(20 * time.Millisecond) }
	if len(nodes) == 0 || !f.onDisks(nodes, slow) {
		return ""
	}
	sleepContext(t.ctx, slowBeforePowerFailure)
	for _, n := range nodes {
		if p := n.keepDown(); p != nil {
			p.signal(syscall.SIGKILL)
		}
	}
	crash := (*disk.LossyDisk).Crash
	if t.IntN(3) > 0 {
		crash = func(d *disk.LossyDisk) (disk.CrashLoss, error) { return d.CrashSome(t.Uint64()) }
	}
	var all disk.CrashLoss
	f.onDisks(nodes, func(d *disk.LossyDisk) error {
		lost, err := crash(d)
		all.Pages, all.KeptPages = all.Pages+lost.Pages, all.KeptPages+lost.KeptPages
		all.Names, all.KeptNames = all.Names+lost.Names, all.KeptNames+lost.KeptNames
		return err
	})
	for _, n := range nodes {
		n.kill() // waits for its end, which nothing holds up now
	}
	f.onDisks(nodes, (*disk.LossyDisk).Remount)
	f.logf("the power of %s failed: %+v", nodeNames(nodes), all)
	sleepContext(t.ctx, t.duration)
	f.restart(nodes...)
	return nodeNames(nodes)
}
