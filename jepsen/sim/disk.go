package sim

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"zamok/raftnode/store"
)

// Disk is where a node's data lives. It survives the process, and can be told to hang or be slow.
// It stands below the rules of package store, so that a stall is seen as one of the disk.
type Disk struct {
	dir    string // empty: the data lives in memory
	memory *store.Memory

	mu      sync.Mutex
	gate    chan struct{} // closed when a stalled disk goes on; nil = it does not stall
	perPart time.Duration // what each write into a snapshot takes
	rot     func(*raft.Log)
	broken  error // of every write from now on
}

// Stall lets every write to log and votes hang until Resume.
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

// SlowSnapshots sets what each write into a snapshot takes.
func (d *Disk) SlowSnapshots(each time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.perPart = each
}

// Rot changes each entry that is read from the log from now on, as a disk does that returns other
// bytes than it was given.
func (d *Disk) Rot(change func(*raft.Log)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rot = change
}

// Break lets every write to log and votes fail from now on; with nil, none.
func (d *Disk) Break(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.broken = err
}

// mended puts a broken disk in order again, and tells whether it was broken.
func (d *Disk) mended() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.broken != nil
	d.broken = nil
	return was
}

// pass waits at the gate, and says whether the write may be made.
func (d *Disk) pass() error {
	d.mu.Lock()
	gate := d.gate
	d.mu.Unlock()
	if gate != nil {
		<-gate
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.broken
}

func (d *Disk) slow() {
	d.mu.Lock()
	each := d.perPart
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
	}
}

type diskLogs struct {
	raft.LogStore
	disk *Disk
}

func (l diskLogs) GetLog(index uint64, log *raft.Log) error {
	err := l.LogStore.GetLog(index, log)
	l.disk.mu.Lock()
	rot := l.disk.rot
	l.disk.mu.Unlock()
	if err == nil && rot != nil {
		rot(log)
	}
	return err
}

func (l diskLogs) StoreLog(log *raft.Log) error {
	if err := l.disk.pass(); err != nil {
		return err
	}
	return l.LogStore.StoreLog(log)
}

func (l diskLogs) StoreLogs(logs []*raft.Log) error {
	if err := l.disk.pass(); err != nil {
		return err
	}
	return l.LogStore.StoreLogs(logs)
}

func (l diskLogs) DeleteRange(least, most uint64) error {
	if err := l.disk.pass(); err != nil {
		return err
	}
	return l.LogStore.DeleteRange(least, most)
}

type diskVotes struct {
	store.Table
	disk *Disk
}

func (v diskVotes) Put(pairs ...store.Pair) error {
	if err := v.disk.pass(); err != nil {
		return err
	}
	return v.Table.Put(pairs...)
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
	return diskSink{sink, s.disk}, nil
}

type diskSink struct {
	raft.SnapshotSink
	disk *Disk
}

func (s diskSink) Write(p []byte) (int, error) {
	s.disk.slow()
	return s.SnapshotSink.Write(p)
}
