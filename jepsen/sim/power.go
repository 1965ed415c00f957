package sim

import (
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"zamok/raftnode/store"
)

// # What a power failure leaves
//
// Everything that the disk had acknowledged, and of each write that was under way what chance decides:
// all of it, nothing, or, of files, a part. It is taken at one moment, as an image of the disk; the
// process ends on the old disk, without a network, and the next one starts from the image.
//
// A write is under way from the moment at which package store asks for it until it returns, which takes
// time in a run with Config.WriteTimeMax. So it is detected when something is answered, announced or built upon
// before its write has returned, when two writes are made of what must be one, and when the order of
// writes is wrong.
//
// In memory a write is there or not: it stands for one transaction of bbolt. On a real disk the pages of
// one are torn as bbolt's order of writing and flushing allows: any of the new pages without the page
// that makes them count, or all of them with it or without it. What lies in the folder of a snapshot
// that is not complete is lost, or cut anywhere.
//
// Not seen is what the layers below package store do with flushes: that bbolt and the snapshots of package store really
// ask for them, and in that order, and that identity.json and the names in directories are flushed. That
// takes a file system which counts them.

// writeOutcome is what became of a write that was under way when the power failed.
type writeOutcome string

const (
	writeKept writeOutcome = "kept"
	writeLost writeOutcome = "lost"
	writeTorn writeOutcome = "torn"
)

// diskImage is what a power failure left.
type diskImage struct {
	memory *store.Memory
	dir    string
}

// capturePowerFailure takes the image of a power failure. The node must have been disconnected before.
func (d *Disk) capturePowerFailure() {
	d.landMu.Lock()
	defer d.landMu.Unlock()
	d.mu.Lock()
	under, decided := slices.Clone(d.inFlight), d.forcedOutcome.get()
	random := rand.New(rand.NewPCG(d.random.Uint64(), 0))
	d.mu.Unlock()

	files := map[string][]byte{} // of those that are torn, what is left
	over := map[string]bool{}    // files of which a write was lost, and so all those behind it
	for _, w := range under {
		if w.completed {
			continue
		}
		became := writeLost
		switch file := fileOf[w.op]; {
		case over[file], decided == writeLost:
		case decided == writeKept, random.IntN(2) == 0:
			became = writeKept
			d.complete(w)
		case d.dir != "" && w.op != opSnapshot && random.IntN(3) > 0:
			became = writeTorn
			files[file] = d.tornFile(w, file, random)
			over[file] = true
		default:
			over[file] = true
		}
		d.sim.Trace.Fault("the power of %s fails, %s: %s", d.id, w.op, became)
		d.mu.Lock()
		d.outcomes[became]++
		d.mu.Unlock()
	}
	if d.voteHalfWritten {
		d.sim.Audit.Violation("the power of %s failed between the two halves of a vote: it may give that term's vote to the earlier candidate, "+
			"without comparing the logs", d.id)
	}
	var err error
	if d.memory != nil {
		d.image = &diskImage{}
		d.image.memory, err = d.memory.Copy()
	} else {
		d.image = &diskImage{dir: d.sim.TempDir()}
		err = copyDir(d.dir, d.image.dir, files, random)
	}
	if err != nil {
		d.sim.Audit.Violation("the simulation can't take the image of %s: %v", d.id, err)
	}
}

// fileOf is which file of a data directory an op writes: writes to one file land in order.
var fileOf = map[diskOp]string{
	opAppend: "log.db", opDelete: "log.db", opVote: "votes.db", opTerm: "votes.db", opSnapshot: "snapshots",
}

// restoreImage gives the next process what a power failure left.
func (d *Disk) restoreImage() {
	d.landMu.Lock()
	defer d.landMu.Unlock()
	if d.image == nil {
		return
	}
	if d.dir != "" {
		_ = os.RemoveAll(d.dir) // or the test's end does
	}
	d.dir, d.memory, d.image, d.voteHalfWritten = d.image.dir, d.image.memory, nil, false
}

// tornFile lets a write land, and returns its file as it is when a part of the write is missing.
func (d *Disk) tornFile(w *write, file string, random *rand.Rand) []byte {
	before, err := os.ReadFile(filepath.Join(d.dir, file))
	d.complete(w)
	after, err2 := os.ReadFile(filepath.Join(d.dir, file))
	if err := errors.Join(err, err2); err != nil {
		d.sim.Audit.Violation("the simulation can't tear a write of %s: %v", d.id, err)
	}
	return tearPages(before, after, random)
}

// The first two pages of a bbolt file hold, in turns, where its tree is. The part of such a page that matters is in its
// first bytes, in one sector, which a disk writes wholly or not at all.
const rootPages = 2

// tearPages mixes a file before and after a transaction of bbolt, which grows the file, writes pages that
// were free, flushes, and then writes one root.
func tearPages(before, after []byte, random *rand.Rand) []byte {
	page := os.Getpagesize()
	mixed := make([]byte, max(len(before), len(after)))
	copy(mixed, before)
	flushed := random.IntN(2) == 0 // all new pages, and the root or not
	root := random.IntN(2) == 0
	for at := 0; at+page <= len(after); at += page {
		switch from := after[at : at+page]; {
		case at < rootPages*page:
			if flushed && root {
				copy(mixed[at:], from)
			}
		case flushed || random.IntN(3) == 0:
			copy(mixed[at:], from)
		case random.IntN(2) == 0:
			copy(mixed[at:], from[:random.IntN(page)])
		}
	}
	return mixed
}

// copyDir copies a data directory; some files are replaced, and what is not complete is lost or cut.
func copyDir(from, to string, replaced map[string][]byte, random *rand.Rand) error {
	return filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		unfinished := strings.Contains(path, ".tmp")
		if unfinished && errors.Is(err, fs.ErrNotExist) {
			return nil // the ending process has just cleared it away
		}
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if e.IsDir() {
			if unfinished && random.IntN(3) == 0 {
				return fs.SkipDir
			}
			return os.MkdirAll(filepath.Join(to, name), 0o700)
		}
		content, isReplaced := replaced[name]
		if !isReplaced {
			content, err = os.ReadFile(path)
		}
		if unfinished {
			if errors.Is(err, fs.ErrNotExist) || len(content) > 0 && random.IntN(3) == 0 {
				return nil
			}
			content = content[:random.IntN(len(content)+1)]
		}
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, name), content, 0o600)
	})
}

// LosePower ends the process as a power failure of its machine does: the disk keeps what it had
// acknowledged, and chance decides of what was under way. A process that is still starting is killed.
func (n *Node) LosePower() {
	p := n.openProcess()
	if p == nil {
		n.Kill()
		return
	}
	n.endProcess(p, func() {
		p.powerLost.Store(true)
		p.disconnect()
		n.Disk.capturePowerFailure()
	}, p.kill)
}

// losePowerDuring has the first of these nodes that begins such a write, which then takes so long at least, lose
// its power after a while. It returns the node, or nil if ctx ended before.
func losePowerDuring(ctx context.Context, op diskOp, takes, after time.Duration, nodes ...*Node) *Node {
	struck := make(chan *Node, len(nodes))
	for _, n := range nodes {
		n.Disk.hookNextWrite(op, takes, func() { struck <- n })
		defer n.Disk.onWrite.set(nil)
	}
	select {
	case n := <-struck:
		time.Sleep(after)
		n.LosePower()
		return n
	case <-ctx.Done():
		return nil
	}
}

// WriteOutcomes is what became of the writes that were under way when the power of machines failed.
func (s *Sim) WriteOutcomes() map[writeOutcome]int {
	all := map[writeOutcome]int{}
	for _, n := range s.Nodes() {
		n.Disk.mu.Lock()
		for f, times := range n.Disk.outcomes {
			all[f] += times
		}
		n.Disk.mu.Unlock()
	}
	return all
}
