package raftnode

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/raft"

	"zamok/raftnode/store"
)

// sickDisk is a disk that a test can make ill while a node writes to it.
type sickDisk struct {
	fails    atomic.Bool
	free     atomic.Uint64 // what it says is free
	refuse   atomic.Int32  // so many times it says that nothing is
	slower   atomic.Int64  // how much longer each write takes, in ns
	slowOnce atomic.Int64  // how much longer the next one takes

	mu    sync.Mutex
	hangs chan struct{} // writes wait until it is closed; nil = they don't
}

const (
	plenty = 1 << 40 // bytes
	// refusalTakes is how long a disk thinks about a single refusal, so that under load the next
	// messages are on their way by then.
	refusalTakes = 20 * time.Millisecond
)

func newSickDisk() *sickDisk {
	d := &sickDisk{}
	d.free.Store(plenty)
	return d
}

// become makes the disk ill, or well.
func (d *sickDisk) become(how string) error {
	switch how {
	case "stalling":
		d.hang()
	case "failing":
		d.fails.Store(true)
	case "full":
		d.free.Store(0)
	case "low":
		d.free.Store(2 * store.DefaultReservedSpace)
	case "full once":
		d.refuse.Store(1)
	case "well":
		d.heal()
	default:
		return fmt.Errorf("no disk becomes %q", how)
	}
	return nil
}

// hang lets every write from now on wait.
func (d *sickDisk) hang() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hangs == nil {
		d.hangs = make(chan struct{})
	}
}

// heal makes the disk well. What hung lands now.
func (d *sickDisk) heal() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.free.Store(plenty)
	d.slower.Store(0)
	if d.hangs != nil {
		close(d.hangs)
		d.hangs = nil
	}
}

func (d *sickDisk) hanging() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.hangs
}

func (d *sickDisk) wrap() store.Wrap {
	return store.Wrap{
		Logs: func(healthy raft.LogStore) raft.LogStore { return sickLog{healthy, d} },
		Free: d.freeBytes,
	}
}

func (d *sickDisk) freeBytes() uint64 {
	if d.refuse.Load() > 0 && d.refuse.Add(-1) >= 0 {
		<-time.NewTimer(refusalTakes).C
		return 0
	}
	return d.free.Load()
}

type sickLog struct {
	raft.LogStore
	disk *sickDisk
}

func (l sickLog) StoreLog(e *raft.Log) error { return l.StoreLogs([]*raft.Log{e}) }

func (l sickLog) StoreLogs(entries []*raft.Log) error {
	if hanging := l.disk.hanging(); hanging != nil {
		<-hanging
	}
	if slower := time.Duration(l.disk.slower.Load() + l.disk.slowOnce.Swap(0)); slower > 0 {
		<-time.NewTimer(slower).C
	}
	if l.disk.fails.Load() {
		return syscall.EIO
	}
	return l.LogStore.StoreLogs(entries)
}
