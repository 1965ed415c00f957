package peer

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// slowDisk is a node's disk that does not get an entry written while it is shut.
type slowDisk struct {
	shut  atomic.Bool
	waits atomic.Int32 // how many results wait for it
}

func (d *slowDisk) waitWritten(ctx context.Context, _ uint64) error {
	d.waits.Add(1)
	defer d.waits.Add(-1)
	for d.shut.Load() {
		if sleep(ctx, 10*time.Millisecond); ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// onSlowDisks runs a test on a cluster that has acknowledged something, whose leader's disk is shut
// then.
func onSlowDisks(t *testing.T,
	test func(w *testCluster, leader, other *raftProcess, disk *slowDisk)) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, false)
		defer w.stopAll()
		disks := map[*raftProcess]*slowDisk{}
		var all []*raftProcess
		d1, d2, d3 := threeDisks(t, mustList(t, threeNodes))
		for _, d := range []*nodeData{d1, d2, d3} {
			disk := new(slowDisk)
			d.waitWritten = disk.waitWritten
			all = append(all, w.start(d))
			disks[all[len(all)-1]] = disk
		}
		leader := w.write("before ", acknowledged, all...)
		sleepVirtual(time.Second)
		other := all[0]
		if other == leader {
			other = all[1]
		}
		disks[leader].shut.Store(true)
		test(w, leader, other, disks[leader])
		disks[leader].shut.Store(false)
	})
}

// Raft counts an entry for the leader as soon as it is in its log. So what a follower has
// acknowledged counts when the leader's disk has it too (P11).
func TestAResultIsHeldUntilTheLeadersDiskHasTheEntries(t *testing.T) {
	onSlowDisks(t, func(w *testCluster, leader, other *raftProcess, disk *slowDisk) {
		future := leader.Apply([]byte("held"), 0)
		sleepVirtual(10 * time.Second)
		assert.EqualValues(t, 2, disk.waits.Load(), "the results of both followers")
		last, err := other.logs.LastIndex()
		require.NoError(t, err)
		assert.Equal(t, leader.LastIndex(), last, "the followers have it")
		assert.Less(t, leader.CommitIndex(), last)
		assert.Zero(t, leader.applied.count("held"))
		assert.Equal(t, raft.Leader, leader.State(), "heartbeats are not held")
		contact := leader.trans.Contact(other.ID())
		assert.Equal(t, last, contact.Acknowledged)
		assert.Less(t, contact.Trip, time.Second, "nor is the time of a hold part of a round trip")

		disk.shut.Store(false)
		require.NoError(t, future.Error())
	})
}

func TestOnlyAcknowledgedEntriesAreHeld(t *testing.T) {
	onSlowDisks(t, func(_ *testCluster, leader, other *raftProcess, disk *slowDisk) {
		next := leader.LastIndex() + 1
		entry := []*raft.Log{{Index: 1, Type: raft.LogNoop}}
		for what, change := range map[string]func(*raft.AppendEntriesRequest){
			"no entries": func(*raft.AppendEntriesRequest) {},
			"a rejection": func(a *raft.AppendEntriesRequest) {
				a.PrevLogEntry, a.PrevLogTerm, a.Entries = next+5, a.Term, nil
			},
			"a newer term there": func(a *raft.AppendEntriesRequest) {
				a.Term--
				a.Entries = entry
			},
		} {
			began := time.Now()
			assert.NoError(t, appending(leader, other, change), what)
			assert.Less(t, time.Since(began), time.Second, what)
			assert.Zero(t, disk.waits.Load(), what)
		}
	})
}

func TestAHeldResultEndsWithAnError(t *testing.T) {
	onSlowDisks(t, func(w *testCluster, leader, other *raftProcess, disk *slowDisk) {
		future := leader.Apply([]byte("held"), 0)
		next := leader.LastIndex()
		answered := make(chan error, 1)
		go func() {
			answered <- appending(leader, other, func(a *raft.AppendEntriesRequest) {
				a.PrevLogEntry, a.PrevLogTerm = next, a.Term
				a.Entries = []*raft.Log{{Index: next + 1, Term: a.Term, Type: raft.LogNoop}}
			})
		}()
		sleepVirtual(time.Second)
		require.Empty(t, answered)
		w.stop(leader)
		require.ErrorIs(t, <-answered, ErrClosed)
		require.Error(t, future.Error())
		assert.Zero(t, leader.applied.count("held"))
	})
}

// Raft handles heartbeats beside its main loop. One of a later term must not end the leadership
// there: the main loop would append what comes next in a term in which another node leads.
func TestADeposedLeaderAppendsNothingInTheNextTerm(t *testing.T) {
	onSlowDisks(t, func(_ *testCluster, leader, other *raftProcess, disk *slowDisk) {
		disk.shut.Store(false)
		before, term := leader.LastIndex(), leader.CurrentTerm()
		require.NoError(t, appending(other, leader,
			func(a *raft.AppendEntriesRequest) { a.Term = term + 1 }))
		synctest.Wait()
		require.Error(t, leader.Apply([]byte("late"), time.Second).Error())
		require.NoError(t, appending(other, leader, func(a *raft.AppendEntriesRequest) {
			a.Term, a.PrevLogEntry, a.PrevLogTerm = term+1, before, term
			a.Entries = []*raft.Log{{Index: before + 1, Term: term + 1, Type: raft.LogNoop}}
		}))
		var entry raft.Log
		require.NoError(t, leader.logs.GetLog(before+1, &entry))
		assert.Equal(t, raft.LogNoop, entry.Type, "the entry of the node that leads")
	})
}
