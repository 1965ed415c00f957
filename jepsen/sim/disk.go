package sim

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"zamok/raftnode/store"
)

// Disk is where a node's data lives. It survives the process, and can be told to hang, to be slow, to
// be full, to fail, or to lose its power. It stands below the rules of package store, so that a stall is
// seen as one of the disk.
type Disk struct {
	dir    string // empty: the data lives in memory
	memory *store.Memory
	sim    *Sim
	id     string // of its node

	// landMu is held while a write lands, and while the power fails: then nothing is half done that the
	// files themselves would not leave half done.
	landMu          sync.Mutex
	voteHalfWritten bool       // the latest vote is on the disk by half; guarded by landing
	image           *diskImage // what a power failure left, for the next process; nil = it did not fail. Guarded by landing

	mu                sync.Mutex    // guards what follows
	random            *rand.Rand    // its own choices
	gate              chan struct{} // closed when a stalled disk continues; nil = it does not stall
	writeTimeMax      time.Duration // a write takes at most so long before it lands
	snapshotWriteTime time.Duration // what each write into a snapshot takes
	corruptRead       func(*raft.Log)
	writeErr          error    // of every write from now on
	freeBytes         uint64   // bytes that are free
	inFlight          []*write // those that are not over, in the order of their beginning
	hook              *writeHook
	forcedOutcome     writeOutcome         // of those; empty = by chance
	outcomes          map[writeOutcome]int // of the writes that were under way when the power failed
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
	completed bool  // or it failed; guarded by landing, as err is
	err       error // what the disk says of it
}

// writeHook tells somebody of the next write of a kind when it begins, and has it take as long as whoever is
// told needs to do something about it.
type writeHook struct {
	op    diskOp
	takes time.Duration
	do    func()
}

// newDisk makes an empty disk for a node.
func (s *Sim) newDisk(id string) *Disk {
	d := &Disk{
		sim: s, id: id, random: s.Random("disk of " + id), writeTimeMax: s.config.WriteTimeMax,
		freeBytes: math.MaxUint64, outcomes: map[writeOutcome]int{},
	}
	if s.config.Disks == OnDisk {
		d.dir = s.TempDir()
	} else {
		d.memory = &store.Memory{}
	}
	return d
}

// Stall lets every write to log and votes, and the end of every snapshot, hang until Resume.
func (d *Disk) Stall() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gate == nil {
		d.gate = make(chan struct{})
	}
}

// Resume lets the writes that hang land.
func (d *Disk) Resume() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gate != nil {
		close(d.gate)
		d.gate = nil
	}
}

// SetWriteTime sets what a write to log or votes takes at most; Config.WriteTimeMax is what it begins with.
func (d *Disk) SetWriteTime(most time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.writeTimeMax = most
}

// SlowSnapshots sets what each write into a snapshot takes.
func (d *Disk) SlowSnapshots(each time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.snapshotWriteTime = each
}

// CorruptReads changes each entry that is read from the log from now on, and gives it checksums that fit: the fault
// is the processor's or the memory's, before they were computed. A disk that returns other bytes than it was
// given is found out by package store.
func (d *Disk) CorruptReads(change func(*raft.Log)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.corruptRead = change
}

// FailWrites lets every write to log and votes fail from now on; with nil, none. Some of those that fail
// land all the same.
func (d *Disk) FailWrites(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.writeErr = err
}

// SetFree leaves so many bytes free, until it is called again. What is written does not count: it is for
// the refusals of package store, which asks before it writes.
func (d *Disk) SetFree(bytes uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.freeBytes = bytes
}

// repair puts a broken disk in order again, and reports whether it was broken.
func (d *Disk) repair() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.writeErr != nil
	d.writeErr = nil
	return was
}

// hookNextWrite has something done when the next write of a kind begins, which then takes so long at least. It
// is done by who writes, so it must not wait, nor ask anything of the disk.
func (d *Disk) hookNextWrite(op diskOp, takes time.Duration, do func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hook = &writeHook{op, takes, do}
}

// clearHook takes back what was to be done at a next write.
func (d *Disk) clearHook() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hook = nil
}

// forceOutcome says of all writes that a power failure will find under way that they are kept, or lost, in place
// of chance.
func (d *Disk) forceOutcome(became writeOutcome) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forcedOutcome = became
}

// free is how many bytes package store sees.
func (d *Disk) free() (uint64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.freeBytes, nil
}

// write makes one write: it hangs, takes its time, lands or fails as the disk was told.
func (d *Disk) write(op diskOp, land func() error) error {
	w := &write{op: op, apply: land}
	gate := d.begin(w)
	defer d.end(w)
	if gate != nil {
		<-gate
	}
	if w.takes > 0 {
		time.Sleep(w.takes)
	}
	d.landMu.Lock()
	defer d.landMu.Unlock()
	d.complete(w)
	return w.err
}

func (d *Disk) begin(w *write) (gate chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.inFlight = append(d.inFlight, w)
	if d.writeTimeMax > 0 {
		w.takes = time.Duration(d.random.Int64N(int64(d.writeTimeMax)))
	}
	if t := d.hook; t != nil && t.op == w.op {
		d.hook = nil
		w.takes = max(w.takes, t.takes)
		t.do()
	}
	return d.gate
}

func (d *Disk) end(w *write) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.inFlight = slices.DeleteFunc(d.inFlight, func(other *write) bool { return other == w })
}

// complete lets a write land, or fail, unless it has already. The caller holds landing.
func (d *Disk) complete(w *write) {
	if w.completed {
		return
	}
	w.completed = true
	d.mu.Lock()
	broken := d.writeErr
	lands := broken == nil || d.random.IntN(2) == 0 // of a write that fails nobody knows what it did
	d.mu.Unlock()
	if lands {
		w.err = w.apply()
	}
	if broken != nil {
		w.err = broken
	}
}

func (d *Disk) delaySnapshotWrite() {
	d.mu.Lock()
	each := d.snapshotWriteTime
	d.mu.Unlock()
	if each > 0 {
		time.Sleep(each)
	}
}

func (d *Disk) wrap() store.Wrap {
	return store.Wrap{
		Logs:      func(l raft.LogStore) raft.LogStore { return diskLogs{l, d} },
		Votes:     func(t store.Table) store.Table { return diskVotes{t, d} },
		Snapshots: func(s raft.SnapshotStore) raft.SnapshotStore { return diskSnapshots{s, d} },
		Free:      d.free,
	}
}

type diskLogs struct {
	raft.LogStore
	disk *Disk
}

func (l diskLogs) GetLog(index uint64, log *raft.Log) error {
	err := l.LogStore.GetLog(index, log)
	l.disk.mu.Lock()
	rot := l.disk.corruptRead
	l.disk.mu.Unlock()
	if err != nil || rot == nil {
		return err
	}
	before := log.Data
	if rot(log); !bytes.Equal(before, log.Data) {
		log.Extensions = store.Checksum(log.Data)
		*log = *store.Seal(log)
	}
	return nil
}

func (l diskLogs) StoreLog(log *raft.Log) error {
	return l.StoreLogs([]*raft.Log{log})
}

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

func (v diskVotes) Put(pairs ...store.Pair) error {
	has := func(key string) bool {
		return slices.ContainsFunc(pairs, func(p store.Pair) bool { return p.Key == key })
	}
	term, candidate := has("LastVoteTerm"), has("LastVoteCand") // as raft calls the parts of a vote
	op := opTerm
	if term || candidate {
		op = opVote
	}
	return v.disk.write(op, func() error {
		err := v.Table.Put(pairs...)
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
	s.disk.delaySnapshotWrite()
	return s.SnapshotSink.Write(p)
}

func (s *diskSink) Close() error {
	if s.ended.Swap(true) {
		return nil // raft ends a sink more than once
	}
	return s.disk.write(opSnapshot, s.SnapshotSink.Close)
}
