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

	"zamok/jepsen/workload"
	"zamok/raftnode/store"
	"zamok/raftnode/tail"
)

// Disk holds a node's data. It survives the process, and can hang, be slow, be full, fail, or lose
// power. It is below package store.
type Disk struct {
	diskImage
	sim *Sim
	id  string // of its node

	// landMu is held while a write lands, and while the power fails. So a power failure finds each
	// write done, not done, or torn as the files themselves allow.
	landMu          sync.Mutex
	voteHalfWritten bool          // half of the latest vote is on the disk; guarded by landMu
	image           *diskImage    // what a killed process left for the next one; guarded by landMu
	damaged         bool          // its tail was cut; guarded by landMu
	logs            raft.LogStore // of the latest process; guarded by landMu

	writeTimeMax      setting[time.Duration] // how long a write takes at most before it lands
	slower            setting[time.Duration] // and by how much longer than that
	snapshotWriteTime setting[time.Duration] // how long each write into a snapshot takes
	corruptRead       setting[func(*raft.Log)]
	writeErr          setting[error]  // of every write from now on
	freeBytes         setting[uint64] // bytes that are free
	onWrite           setting[writeHook]
	forcedOutcome     setting[writeOutcome]

	stalled gate // writes wait while it is closed

	mu       sync.Mutex           // guards what follows
	random   *rand.Rand           // its own choices
	inFlight []*write             // in the order of their beginning
	outcomes map[writeOutcome]int // of the writes that were in flight when the power failed
	// entries that raft counted as stored, and whose write never began
	unbegun int
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
	opSnapshot diskOp = "snapshot" // the completion of a snapshot
)

// write is a write in flight.
type write struct {
	op        diskOp
	takes     time.Duration
	apply     func() error
	end       tail.End // of an append: the end of the log after it
	completed bool     // it has landed or failed; guarded by landMu, as is err
	err       error    // that the disk returns
}

// writeHook is called before and after each write. The write takes at least as long as the first
// call returns.
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

// Stall lets every write to log and votes, and the completion of every snapshot, hang until Resume.
func (d *Disk) Stall() { d.stalled.shut() }

// Resume lets the writes that hang land.
func (d *Disk) Resume() { d.stalled.open() }

// SlowDown makes each write that begins from now on slower by this.
func (d *Disk) SlowDown(by time.Duration) { d.slower.set(by) }

// SlowSnapshots sets how long each write into a snapshot takes.
func (d *Disk) SlowSnapshots(each time.Duration) { d.snapshotWriteTime.set(each) }

// CorruptReads changes each entry that is read from the log from now on, with valid checksums, as
// if a processor or memory had changed it before they were computed. Package store itself detects a
// disk that returns other bytes than were written.
func (d *Disk) CorruptReads(change func(*raft.Log)) { d.corruptRead.set(change) }

// FailWrites makes every write to log and votes fail from now on, or none if err is nil. Some of
// the failing writes land all the same. It returns the error that was set before.
func (d *Disk) FailWrites(err error) (before error) { return d.writeErr.set(err) }

// SetFree sets how many bytes are free, until it is called again. Writes do not change that:
// package store reads it before it writes.
func (d *Disk) SetFree(bytes uint64) { d.freeBytes.set(bytes) }

// hookNextWrite calls do when the next write of a kind begins, and makes that write take at least
// so long.
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

// write makes one write, which may hang, takes its time, and lands or fails.
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
		w.takes = max(w.takes, workload.UpTo(d.random, most))
	}
	w.takes += d.slower.get()
}

func (d *Disk) end(w *write) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.inFlight = slices.DeleteFunc(d.inFlight, func(other *write) bool { return other == w })
}

// complete lets a write land or fail, once. The caller holds landMu.
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
	configuration raft.Configuration, configurationIndex uint64,
	transport raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(version, index, term, configuration, configurationIndex,
		transport)
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
