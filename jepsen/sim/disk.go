package sim

import (
	"bytes"
	"errors"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"zamok/raftnode/store"
)

// Disk is where a node's data lives. It survives the process, and can hang, be slow, be full, fail, or lose its
// power. It is below package store, to which a stall is one of the disk.
type Disk struct {
	diskImage
	sim *Sim
	id  string // of its node

	// landMu is held while a write lands, and while the power fails: then nothing is half done that the
	// files themselves would not leave half done.
	landMu          sync.Mutex
	voteHalfWritten bool       // the latest vote is on the disk by half; guarded by landMu
	image           *diskImage // what a power failure left, for the next process; nil = it did not fail. Guarded by landMu

	writeTimeMax      setting[time.Duration] // a write takes at most so long before it lands
	snapshotWriteTime setting[time.Duration] // what each write into a snapshot takes
	corruptRead       setting[func(*raft.Log)]
	writeErr          setting[error]  // of every write from now on
	freeBytes         setting[uint64] // bytes that are free
	onWrite           setting[writeHook]
	forcedOutcome     setting[writeOutcome]

	stalled gate // writes wait while it is shut

	mu       sync.Mutex           // guards what follows
	random   *rand.Rand           // its own choices
	inFlight []*write             // writes under way, in the order of their beginning
	outcomes map[writeOutcome]int // of the writes that were under way when the power failed
}

// setting is a value that stories change while nodes read it.
type setting[T any] struct {
	mu    sync.Mutex
	value T
}

func (s *setting[T]) get() T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.value
}

// set changes the value, and returns the one before.
func (s *setting[T]) set(value T) (before T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, s.value = s.value, value
	return before
}

// diskOp is what a write is for.
type diskOp string

const (
	opAppend   diskOp = "append"
	opDelete   diskOp = "delete"
	opVote     diskOp = "vote"
	opTerm     diskOp = "term"
	opSnapshot diskOp = "snapshot" // its completion; what is written into it before counts for nothing
)

// write is one that is under way.
type write struct {
	op        diskOp
	takes     time.Duration
	apply     func() error
	completed bool  // or it failed; guarded by landMu, as err is
	err       error // that the disk returns
}

// writeHook is called before each write, which takes at least as long as it returns, and again after it; nil = nothing is.
type writeHook func(op diskOp, returned bool) (takes time.Duration)

// newDisk makes an empty disk for a node.
func (s *Sim) newDisk(id string) *Disk {
	d := &Disk{
		sim: s, id: id, random: s.Random("disk of " + id), outcomes: map[writeOutcome]int{},
	}
	d.writeTimeMax.set(s.config.WriteTimeMax)
	d.freeBytes.set(math.MaxUint64)
	if s.config.OnDisk {
		d.dir = s.TempDir()
	} else {
		d.memory = &store.Memory{}
	}
	return d
}

// Stall lets every write to log and votes, and the end of every snapshot, hang until Resume.
func (d *Disk) Stall() { d.stalled.shut() }

// Resume lets the writes that hang land.
func (d *Disk) Resume() { d.stalled.open() }

// SlowSnapshots sets what each write into a snapshot takes.
func (d *Disk) SlowSnapshots(each time.Duration) { d.snapshotWriteTime.set(each) }

// CorruptReads changes each entry that is read from the log from now on, and gives it checksums that fit: the
// fault is the processor's or the memory's, before they were computed. Package store detects a disk that returns
// other bytes than it was given.
func (d *Disk) CorruptReads(change func(*raft.Log)) { d.corruptRead.set(change) }

// FailWrites lets every write to log and votes fail from now on; with nil, none. Some of those that fail
// land all the same. It returns the error that was set before.
func (d *Disk) FailWrites(err error) (before error) { return d.writeErr.set(err) }

// SetFree leaves so many bytes free, until it is called again. What is written does not count: package store
// asks before it writes.
func (d *Disk) SetFree(bytes uint64) { d.freeBytes.set(bytes) }

// hookNextWrite calls do when the next write of a kind begins, which then takes so long at least.
func (d *Disk) hookNextWrite(op diskOp, takes time.Duration, do func()) {
	var done atomic.Bool
	d.onWrite.set(func(now diskOp, returned bool) time.Duration {
		if now != op || returned || done.Swap(true) {
			return 0
		}
		do()
		return takes
	})
}

// write makes one write: it hangs, takes its time, lands or fails.
func (d *Disk) write(op diskOp, land func() error) error {
	w := &write{op: op, apply: land}
	if onWrite := d.onWrite.get(); onWrite != nil {
		w.takes = onWrite(op, false)
		defer onWrite(op, true)
	}
	d.begin(w)
	defer d.end(w)
	d.stalled.wait()
	time.Sleep(w.takes)
	d.landMu.Lock()
	defer d.landMu.Unlock()
	d.complete(w)
	return w.err
}

func (d *Disk) begin(w *write) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.inFlight = append(d.inFlight, w)
	if most := d.writeTimeMax.get(); most > 0 {
		w.takes = max(w.takes, time.Duration(d.random.Int64N(int64(most))))
	}
}

func (d *Disk) end(w *write) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.inFlight = slices.DeleteFunc(d.inFlight, func(other *write) bool { return other == w })
}

// complete lets a write land, or fail, unless it has already. The caller holds landMu.
func (d *Disk) complete(w *write) {
	if w.completed {
		return
	}
	w.completed = true
	broken := d.writeErr.get()
	d.mu.Lock()
	lands := broken == nil || d.random.IntN(2) == 0 // a write that fails may have landed
	d.mu.Unlock()
	if lands {
		w.err = w.apply()
	}
	if broken != nil {
		w.err = broken
	}
}

func (d *Disk) wrap() store.Wrap {
	return store.Wrap{
		Logs:      func(l raft.LogStore) raft.LogStore { return diskLogs{l, d} },
		Votes:     func(t store.Table) store.Table { return diskVotes{t, d} },
		Snapshots: func(s raft.SnapshotStore) raft.SnapshotStore { return diskSnapshots{s, d} },
		Free:      func() uint64 { return d.freeBytes.get() },
	}
}

type diskLogs struct {
	raft.LogStore
	disk *Disk
}

func (l diskLogs) GetLog(index uint64, log *raft.Log) error {
	err := l.LogStore.GetLog(index, log)
	corrupt := l.disk.corruptRead.get()
	if err != nil || corrupt == nil {
		return err
	}
	before := log.Data
	if corrupt(log); !bytes.Equal(before, log.Data) {
		log.Extensions = store.Checksum(log.Data)
		*log = *store.Seal(log)
	}
	return nil
}

func (l diskLogs) StoreLog(log *raft.Log) error { return l.StoreLogs([]*raft.Log{log}) }

func (l diskLogs) StoreLogs(logs []*raft.Log) error {
	return l.disk.write(opAppend, func() error { return l.LogStore.StoreLogs(logs) })
}

func (l diskLogs) DeleteRange(least, most uint64) error {
	return l.disk.write(opDelete, func() error { return l.LogStore.DeleteRange(least, most) })
}

type diskVotes struct {
	store.Table
	disk *Disk
}

func (v diskVotes) Put(changes store.Values) error {
	_, term := changes["LastVoteTerm"] // as raft calls the parts of a vote
	_, candidate := changes["LastVoteCand"]
	op := opTerm
	if term || candidate {
		op = opVote
	}
	return v.disk.write(op, func() error {
		err := v.Table.Put(changes)
		if err == nil && op == opVote {
			v.disk.voteHalfWritten = !candidate
		}
		return err
	})
}

type diskSnapshots struct {
	raft.SnapshotStore
	disk *Disk
}

func (s diskSnapshots) Create(version raft.SnapshotVersion, index, term uint64,
	configuration raft.Configuration, configurationIndex uint64, transport raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(version, index, term, configuration, configurationIndex, transport)
	if err != nil {
		return nil, err
	}
	return &diskSink{SnapshotSink: sink, disk: s.disk}, nil
}

type diskSink struct {
	raft.SnapshotSink
	disk  *Disk
	ended atomic.Bool
}

func (s *diskSink) Write(p []byte) (int, error) {
	time.Sleep(s.disk.snapshotWriteTime.get())
	return s.SnapshotSink.Write(p)
}

func (s *diskSink) Close() error {
	if s.ended.Swap(true) {
		return nil // raft ends a sink more than once
	}
	return s.disk.write(opSnapshot, s.SnapshotSink.Close)
}

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

// diskImage is what is on a disk.
type diskImage struct {
	dir    string // empty: the data lives in memory
	memory *store.Memory
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
	d.diskImage, d.image, d.voteHalfWritten = *d.image, nil, false
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
