package sim

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"zamok/raftnode/store"
	"zamok/raftnode/tail"
)

// # What a kill and a power failure leave
//
// They leave every write that the disk had acknowledged. Of each write in flight they leave: after
// a kill all of it, because the kernel has it; after a power failure, at random, all of it,
// nothing, or, of files, a part. The image of the disk is taken at one moment. The process ends on
// the old disk, without a network, and the next one starts from the image.
//
// A write is in flight from the call of package store until it returns, which takes time in a run
// with Config.WriteTimeMax. So these mistakes are detected: something is answered, announced or
// used before its write has returned; two writes are made of one; the order of writes is wrong.
// What package store has not begun to write is lost: above all the leader's entries that gather
// behind a write in flight.
//
// In memory a write is done or not, like one transaction of bbolt. A lost append may leave a part
// behind. Then the next process owes its end, which may have been acknowledged for all that it
// knows. On a real disk the pages of a write are torn as bbolt's order of writes and flushes
// allows: any of the new pages without the page that refers to them, or all of them with or without
// it. Of an append to a segment any sectors may be missing. The folder of an incomplete snapshot is
// lost, or its files are cut anywhere.
//
// Not seen is what the layers below package store do with flushes: that bbolt, the log and the
// snapshots flush, and in that order, and that identity.json and the names in directories are
// flushed. That takes a file system which counts flushes.

// writeOutcome is the outcome of a write that was in flight when the power failed.
type writeOutcome string

const (
	writeKept writeOutcome = "kept"
	writeLost writeOutcome = "lost"
	writeTorn writeOutcome = "torn"
)

// diskImage is what is on a disk.
type diskImage struct {
	dir    string // empty: the data lives in memory
	memory *store.Memory
}

// capture takes the image that a kill or a power failure leaves. The node is disconnected, and raft
// has counted entries as stored up to the index counted.
func (d *Disk) capture(counted uint64, powerFails bool) {
	d.landMu.Lock()
	defer d.landMu.Unlock()
	d.mu.Lock()
	inFlight, forced := slices.Clone(d.inFlight), d.forcedOutcome.get()
	random := rand.New(rand.NewPCG(d.random.Uint64(), 0))
	d.mu.Unlock()

	torn := map[string][]byte{} // the contents of torn files
	over := map[string]bool{}   // files that lost a write, and so all later ones
	owed := tail.End{}          // of an append that left a part
	for _, w := range inFlight {
		if w.completed {
			continue
		}
		if !powerFails {
			d.complete(w)
			continue
		}
		outcome := writeLost
		switch file := fileOf[w.op]; {
		case over[file], forced == writeLost:
		case forced == writeKept, forced == "" && random.IntN(2) == 0:
			outcome = writeKept
			d.complete(w)
		case d.canTear(w.op) && random.IntN(3) > 0:
			outcome = writeTorn
			maps.Copy(torn, d.tear(w, random))
			over[file] = true
		default:
			over[file] = true
			if d.memory != nil && w.op == opAppend && !d.sim.noneTorn.Load() &&
				(forced == writeTorn || random.IntN(2) == 0) {
				outcome, owed = writeTorn, w.end
			}
		}
		d.sim.Trace.Fault("the power of %s fails, %s: %s", d.id, w.op, outcome)
		d.mu.Lock()
		d.outcomes[outcome]++
		d.mu.Unlock()
	}
	d.countUnbegun(counted)
	if d.voteHalfWritten {
		d.sim.Audit.Violation("%s ended between the two halves of a vote: it may give that "+
			"term's vote to the earlier candidate, without comparing the logs", d.id)
	}
	var err error
	if d.memory != nil {
		d.image = &diskImage{}
		d.image.memory, err = d.memory.Copy()
		if err == nil && owed != (tail.End{}) {
			err = d.image.memory.Owe(owed)
		}
	} else {
		d.image = &diskImage{dir: d.sim.TempDir()}
		err = copyDir(d.dir, d.image.dir, torn, random)
	}
	if err != nil {
		d.sim.Audit.Violation("the simulation can't take the image of %s: %v", d.id, err)
	}
}

// cutImage damages the last entries of the log in an image in memory.
func (d *Disk) cutImage(entries uint64) {
	d.landMu.Lock()
	defer d.landMu.Unlock()
	if d.image == nil || d.image.memory == nil {
		return
	}
	if err := d.image.memory.Cut(entries); err != nil {
		d.sim.Audit.Violation("the simulation can't cut the log of %s: %v", d.id, err)
	}
	d.damaged = true
	d.sim.Trace.Fault("the log of %s loses %d entries, and it owes entry %d of term %d", d.id,
		entries,
		d.image.memory.Owed().Index, d.image.memory.Owed().Term)
}

// owes reports whether the node, or the next process on this disk, owes something, and whether that
// is because its tail was damaged.
func (d *Disk) owes() (owes, damaged bool) {
	d.landMu.Lock()
	defer d.landMu.Unlock()
	memory := d.memory
	if d.image != nil {
		memory = d.image.memory
	}
	owes = memory != nil && memory.Owed() != tail.End{}
	d.damaged = d.damaged && owes
	return owes, d.damaged
}

// countUnbegun counts the entries that raft counted as stored but that are not on the disk. The
// caller holds landMu.
func (d *Disk) countUnbegun(counted uint64) {
	last, err := d.logs.LastIndex()
	if err != nil {
		d.sim.Audit.Violation("the simulation can't read the log of %s: %v", d.id, err)
	}
	if last == 0 || counted <= last { // an empty log begins behind a snapshot
		return
	}
	d.sim.Trace.Fault("%s loses entries %d to %d, which it had not begun to write", d.id, last+1,
		counted)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unbegun += int(counted - last)
}

// fileOf is the part of a data directory that an op writes. Writes to one part land in order.
var fileOf = map[diskOp]string{
	opAppend: "log", opDelete: "log", opVote: "votes", opTerm: "votes", opSnapshot: "snapshots",
}

// restoreImage replaces the disk by the image that a kill or a power failure left.
func (d *Disk) restoreImage() {
	d.landMu.Lock()
	defer d.landMu.Unlock()
	if d.image == nil {
		return
	}
	if d.dir != "" {
		_ = os.RemoveAll(d.dir) // or the test's end does
	}
	d.diskImage, d.image, d.voteHalfWritten = *d.image, nil, false
}

// canTear reports whether a part of such a write may be missing. A deletion is on the disk before
// segments are removed.
func (d *Disk) canTear(op diskOp) bool {
	return d.dir != "" && op != opSnapshot && op != opDelete
}

// tear lets a write land, and returns the files that it changed, without a part of the write.
func (d *Disk) tear(w *write, random *rand.Rand) map[string][]byte {
	before, err := d.files(fileOf[w.op])
	d.complete(w)
	after, err2 := d.files(fileOf[w.op])
	if err := errors.Join(err, err2); err != nil {
		d.sim.Audit.Violation("the simulation can't tear a write of %s: %v", d.id, err)
	}
	torn, whole := map[string][]byte{}, random.IntN(4) == 0
	for name, text := range after {
		old, existed := before[name]
		switch {
		case !existed || bytes.Equal(old, text):
		case filepath.Ext(name) == ".log" && !whole:
			torn[name] = tearSectors(old, text, random)
		case filepath.Ext(name) == ".db":
			torn[name] = tearPages(old, text, random)
		}
	}
	return torn
}

// files are the contents of the files of a part of the data directory.
func (d *Disk) files(part string) (map[string][]byte, error) {
	pattern := part + ".db"
	if part == fileOf[opAppend] {
		pattern = filepath.Join(part, "*.log")
	}
	paths, err := filepath.Glob(filepath.Join(d.dir, pattern))
	files := map[string][]byte{}
	for _, path := range paths {
		name, relErr := filepath.Rel(d.dir, path)
		text, readErr := os.ReadFile(path)
		if errors.Is(readErr, fs.ErrNotExist) {
			continue // the next segment gets its name on a goroutine of its own
		}
		files[name] = text
		err = errors.Join(err, relErr, readErr)
	}
	return files, err
}

// sectorBytes is what a disk writes wholly or not at all.
const sectorBytes = 512

// tearSectors mixes a segment before and after a write: any of its sectors are missing.
func tearSectors(before, after []byte, random *rand.Rand) []byte {
	mixed := bytes.Clone(after)
	for at := 0; at < len(before); at += sectorBytes {
		end := min(at+sectorBytes, len(before))
		if !bytes.Equal(before[at:end], after[at:end]) && random.IntN(2) == 0 {
			copy(mixed[at:end], before[at:end])
		}
	}
	return mixed
}

// The first two pages of a bbolt file hold, in turn, the position of its tree. That is in the first
// bytes of the page, in one sector, which a disk writes wholly or not at all.
const rootPages = 2

// tearPages mixes a file before and after a transaction of bbolt, which grows the file, writes
// pages that were free, flushes, and then writes one root.
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

// isSegment reports whether a file is a segment of the log, or becomes one.
func isSegment(path string) bool {
	return strings.HasSuffix(strings.TrimSuffix(path, ".new"), ".log")
}

// copyDir copies a data directory; some files are replaced, and what is not complete is lost or
// cut.
func copyDir(from, to string, replaced map[string][]byte, random *rand.Rand) error {
	return filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		unfinished := strings.Contains(path, ".tmp")
		if (unfinished || isSegment(path)) && errors.Is(err, fs.ErrNotExist) {
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
		if isSegment(path) && errors.Is(err, fs.ErrNotExist) {
			return nil // it was renamed or deleted
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

// losePowerDuring makes the first of these nodes that begins such a write lose its power after a
// while. The write takes at least takes. It returns the node, or nil if ctx ended before.
func losePowerDuring(ctx context.Context, op diskOp, takes, after time.Duration,
	nodes ...*Node) *Node {
	struck := make(chan *Node, len(nodes))
	for _, n := range nodes {
		n.Disk.hookNextWrite(op, takes, func() { struck <- n })
		defer func() { n.Disk.onWrite.set(nil) }()
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
