package raftnode

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

// floor is the bare stack under a node, at the same settings: raft on raft-boltdb, over raft's own
// TCP transport, with a machine that does nothing and one command in each entry. What a node is
// worth is measured against it, and what a setting of raft does is shown with it.
type floor struct {
	raft    *raft.Raft
	disk    *sickDisk
	applied atomic.Uint64
	cancel  context.CancelFunc
	busy    sync.WaitGroup
}

func runFloor(t *testing.T, o order, m *mouth, tasks <-chan task) {
	f := openFloor(t, o)
	m.say(said{Of: "open"})
	for a := range tasks {
		answer := said{Of: a.Do}
		switch a.Do {
		case "load":
			f.load(a.Workers)
		case "rest":
			f.rest()
		case "report":
			answer.State = &standing{
				Leads: f.raft.State() == raft.Leader, Term: f.raft.CurrentTerm(),
				Index: f.applied.Load(), Last: f.raft.LastIndex(),
			}
		case "sick":
			answer.Error = text(f.disk.become(a.How))
		case "close":
			m.say(answer)
			return
		case "serve":
			answer.Name = serveCalls(t, f.call)
		default:
			answer.Error = "unknown to the floor"
		}
		m.say(answer)
	}
}

func openFloor(t *testing.T, o order) *floor {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	f := &floor{disk: newSickDisk(), cancel: func() {}}
	self := peer.Server{Name: o.ID, Incarnation: peer.Incarnation{1}}
	settings := &raftRun{shortest: cmp.Or(o.Election, timeoutMin),
		runs: &raftRuns{timing: &timing{}, base: &base{log: log, self: self, cfg: Config{
			ID: o.ID, SnapshotEntries: snapshotEntriesDefault, SnapshotEvery: snapshotEveryDefault,
		}}}}
	bolt, err := raftboltdb.New(
		raftboltdb.Options{Path: filepath.Join(o.Dir, "raft.db"), BoltOptions: &bbolt.Options{
			NoFreelistSync: true, FreelistType: bbolt.FreelistMapType, InitialMmapSize: 64 << 20,
		}})
	require.NoError(t, err)
	logs, err := raft.NewLogCache(store.LogCacheEntries, refusingLog{bolt, f.disk})
	require.NoError(t, err)
	snapshots, err := raft.NewFileSnapshotStore(o.Dir, 2, io.Discard)
	require.NoError(t, err)
	var transport *raft.NetworkTransport
	until(t, "a port at "+o.Address, func() bool {
		transport, err = raft.NewTCPTransportWithConfig(o.Address, nil,
			&raft.NetworkTransportConfig{
				MaxPool: 3, MaxRPCsInFlight: o.Floor, Timeout: 2 * time.Second,
				Logger: raftLogger(log),
			})
		return err == nil
	})
	list, err := peer.ParseList(o.Cluster)
	require.NoError(t, err)
	config := settings.raftConfig()
	config.NotifyCh = nil
	incarnations := make(map[string]peer.Incarnation)
	for _, node := range list.Nodes() {
		incarnations[node.ID] = peer.Incarnation{1} // only a handshake looks at it
	}
	founders := peer.NewInitialMembers(list, incarnations)
	require.NoError(t, raft.BootstrapCluster(config, logs, bolt, snapshots, transport,
		founders.Configuration()))
	f.raft, err = raft.NewRaft(config, f, logs, bolt, snapshots, transport)
	require.NoError(t, err)
	return f
}

// refusingLog refuses entries when the disk says that it is full, as package store does.
type refusingLog struct {
	raft.LogStore
	disk *sickDisk
}

func (l refusingLog) StoreLog(e *raft.Log) error { return l.StoreLogs([]*raft.Log{e}) }

func (l refusingLog) StoreLogs(entries []*raft.Log) error {
	if l.disk.freeBytes() == 0 {
		return store.ErrDiskFull
	}
	return l.LogStore.StoreLogs(entries)
}

// ApplyBatch implements raft.BatchingFSM.
func (f *floor) ApplyBatch(logs []*raft.Log) []any {
	f.applied.Store(logs[len(logs)-1].Index)
	return make([]any, len(logs))
}

// Apply implements raft.FSM.
func (f *floor) Apply(l *raft.Log) any { return f.ApplyBatch([]*raft.Log{l})[0] }

// Snapshot implements raft.FSM.
func (f *floor) Snapshot() (raft.FSMSnapshot, error) { return nothing{}, nil }

// Restore implements raft.FSM.
func (f *floor) Restore(r io.ReadCloser) error { return r.Close() }

type nothing struct{}

func (nothing) Persist(sink raft.SnapshotSink) error { return sink.Close() }
func (nothing) Release()                             {}

// call proposes one command in one entry.
func (f *floor) call(command []byte, answer func(ok bool)) {
	future := f.raft.Apply(command, 0)
	go func() { answer(future.Error() == nil) }()
}

// load proposes from so many goroutines until it is paused.
func (f *floor) load(workers int) {
	f.rest()
	var ctx context.Context
	ctx, f.cancel = context.WithCancel(context.Background())
	for i := range workers {
		command := fmt.Appendf(nil, "%64d", i)
		f.busy.Go(func() {
			for ctx.Err() == nil {
				if f.raft.Apply(command, 0).Error() == nil {
					continue
				}
				wait := time.NewTimer(insistEvery)
				select {
				case <-wait.C:
				case <-ctx.Done():
					wait.Stop()
				}
			}
		})
	}
}

func (f *floor) rest() {
	f.cancel()
	f.busy.Wait()
}
