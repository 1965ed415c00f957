package sim

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"zamok/raftnode/store"
	"zamok/raftnode/tail"
)

// # What a kill and a power failure leave
//
// Everything that the disk had acknowledged, and of each write that was under way: after a kill all of it, because
// the kernel has it; after a power failure what chance decides: all of it, nothing, or, of files, a part. It is
// taken at one moment, as an image of the disk; the process ends on the old disk, without a network, and the
// next one starts from the image.
//
// A write is under way from the moment at which package store asks for it until it returns, which takes
// time in a run with Config.WriteTimeMax. So it is detected when something is answered, announced or built upon
// before its write has returned, when two writes are made of what must be one, and when the order of
// writes is wrong. What package store has not asked for yet is lost: above all a leader's entries that gather
// while the write before them is under way.
//
// In memory a write is there or not: it stands for one transaction of bbolt. An append that is not
// there may have left a part behind, and then the next process owes its end, which it can't tell
// from one that was acknowledged. On a real disk the pages of one are torn as bbolt's order of
// writing and flushing allows: any of the new pages without the page that makes them count, or all
// of them with it or without it. Of an append to a segment any sectors are missing. What lies in
// the folder of a snapshot that is not complete is lost, or cut anywhere.
//
// Not seen is what the layers below package store do with flushes: that bbolt, the log and the
// snapshots of package store really ask for them, and in that order, and that identity.json and the
// names in directories are flushed. That takes a file system which counts them.

// writeOutcome is what became of a write that was under way when the power failed.
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

// capture takes the image of what a kill leaves, or a power failure. The node must have been disconnected before,
// when the last entry that raft counted as stored was counted.
func (d *Disk) capture(counted uint64, powerFails bool) {
	d.landMu.Lock()
	defer d.landMu.Unlock()
	d.mu.Lock()
	under, decided := slices.Clone(d.inFlight), d.forcedOutcome.get()
	random := rand.New(rand.NewPCG(d.random.Uint64(), 0))
	d.mu.Unlock()

	torn := map[string][]byte{} // of files that are torn, what is left
	over := map[string]bool{}   // files of which a write was lost, and so all those behind it
	owed := tail.End{}          // of an append of which a part is left
	for _, w := range under {
		if w.completed {
			continue
		}
		if !powerFails {
			d.complete(w)
			continue
		}
		became := writeLost
		switch file := fileOf[w.op]; {
		case over[file], decided == writeLost:
		case decided == writeKept, decided == "" && random.IntN(2) == 0:
			became = writeKept
			d.complete(w)
		case d.canTear(w.op) && random.IntN(3) > 0:
			became = writeTorn
			maps.Copy(torn, d.tear(w, random))
			over[file] = true
		default:
			over[file] = true
			if d.memory != nil && w.op == opAppend && !d.sim.noneTorn.Load() &&
				(decided == writeTorn || random.IntN(2) == 0) {
				became, owed = writeTorn, w.end
			}
		}
		d.sim.Trace.Fault("the power of %s fails, %s: %s", d.id, w.op, became)
		d.mu.Lock()
		d.outcomes[became]++
		d.mu.Unlock()
	}
	d.countUnbegun(counted)
	if d.voteHalfWritten {
		d.sim.Audit.Violation("%s ended between the two halves of a vote: it may give that term's vote to the earlier candidate, "+
			"without comparing the logs", d.id)
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

// cutImage damages the last entries of the log in an image, in memory.
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
	d.sim.Trace.Fault("the log of %s loses %d entries, and it owes entry %d of term %d", d.id, entries,
		d.image.memory.Owed().Index, d.image.memory.Owed().Term)
}

// owes reports whether the node, or the next process on this disk, owes something, and whether that
// is because its tail was cut.
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

// countUnbegun counts the entries that raft counted as stored and that are not on the disk. The caller holds landMu.
func (d *Disk) countUnbegun(counted uint64) {
	last, err := d.logs.LastIndex()
	if err != nil {
		d.sim.Audit.Violation("the simulation can't read the log of %s: %v", d.id, err)
	}
	if last == 0 || counted <= last { // an empty log begins behind a snapshot
		return
	}
	d.sim.Trace.Fault("%s loses entries %d to %d, which it had not begun to write", d.id, last+1, counted)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unbegun += int(counted - last)
}

// fileOf is which part of a data directory an op writes: writes to one land in order.
var fileOf = map[diskOp]string{
	opAppend: "log", opDelete: "log", opVote: "votes", opTerm: "votes", opSnapshot: "snapshots",
}

// restoreImage gives the next process what a kill or a power failure left.
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

// canTear reports whether a part of such a write may be missing. After a deletion, segments are taken
// away: that it is on the disk comes before.
func (d *Disk) canTear(op diskOp) bool {
	return d.dir != "" && op != opSnapshot && op != opDelete
}

// tear lets a write land, and returns the files that it changed as they are when a part of the write is missing.
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

// files are the files of a part of the data directory.
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

// isSegment reports whether a file is a segment of the log, or becomes one.
func isSegment(path string) bool {
	return strings.HasSuffix(strings.TrimSuffix(path, ".new"), ".log")
}

// copyDir copies a data directory; some files are replaced, and what is not complete is lost or cut.
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
			return nil // it has got another name, or was deleted
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
