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
	"zamok/raftnode/tail"
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
	voteHalfWritten bool          // the latest vote is on the disk by half; guarded by landMu
	image           *diskImage    // what a process left that did not end in order, for the next one. Guarded by landMu
	damaged         bool          // its tail was cut; guarded by landMu
	logs            raft.LogStore // of the latest process; guarded by landMu

	writeTimeMax      setting[time.Duration] // a write takes at most so long before it lands
	slower            setting[time.Duration] // and so much longer
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
	unbegun  int                  // entries that raft counted as stored, and lost with the process: their write had not begun
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
	end       tail.End // of an append, that of the log behind it
	completed bool     // or it failed; guarded by landMu, as err is
	err       error    // that the disk returns
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

// SlowDown has each write that begins from now on take so much longer.
func (d *Disk) SlowDown(by time.Duration) { d.slower.set(by) }

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
	return d.do(&write{op: op, apply: land})
}

func (d *Disk) do(w *write) error {
	op := w.op
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
	w.takes += d.slower.get()
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
		Logs: func(l raft.LogStore) raft.LogStore {
			d.landMu.Lock()
			defer d.landMu.Unlock()
			d.logs = l
			return diskLogs{l, d}
		},
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
	last := logs[len(logs)-1]
	end := tail.End{Term: last.Term, Index: last.Index}
	return l.disk.do(&write{op: opAppend, end: end, apply: func() error {
		if l.disk.image == nil { // else no process will read what is written
			l.disk.sim.Audit.stored(l.disk.id, logs)
		}
		return l.LogStore.StoreLogs(logs)
	}})
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
