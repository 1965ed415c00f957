package store

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A follower has entries of a leader that came to nothing, and its new leader sends a snapshot that
// ends among them. They go, wherever the process ends, and the follower takes what comes behind the
// snapshot.
func TestALogThatContradictsTheLeadersSnapshotGoes(t *testing.T) {
	for name, stale := range map[string][2]uint64{
		"beyond the snapshot": {200, 300},
		"up to the snapshot":  {200, 250},
		"from the snapshot":   {250, 600},
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, reopen func() *Store) {
				st := reopen()
				fill(t, st, 1, 1, stale[0]-1)
				fill(t, st, 2, stale[0], stale[1])
				fatal := 0
				st.record.fatal = func(err error) {
					assert.ErrorIs(t, err, ErrContradicted)
					fatal++ // raft lives on in this test, and acknowledges the snapshot
				}
				f := follow(t, st)
				f.installs(t, 3, 250)
				assert.Equal(t, 1, fatal)
				f.ends(t)

				st = reopen()
				f = follow(t, st)
				f.appends(t, 3, 250, entries(3, 251, 255))
				f.appends(t, 3, 255, nil)
				f.ends(t)
				first, last := span(t, reopen().Logs())
				assert.Equal(t, []uint64{251, 255}, []uint64{first, last})
			})
		})
	}
}

// A leader that did not receive the answer that its snapshot was installed sends it again, and this
// node has acknowledged what lies behind it meanwhile. None of that goes, and the leader can
// continue behind the snapshot, also with entries of another term. Raft deletes the same range to
// make room for those, and because of a snapshot.
func TestASnapshotThatComesAgainCostsNoEntry(t *testing.T) {
	onEach(t, func(t *testing.T, reopen func() *Store) {
		f := follow(t, reopen())
		f.installs(t, 3, 250)
		f.appends(t, 3, 250, entries(3, 251, 251))
		f.installs(t, 3, 250)
		f.ends(t)
		st := reopen()
		first, last := span(t, st.Logs())
		assert.Equal(t, []uint64{251, 251}, []uint64{first, last}, "it was acknowledged")

		f = follow(t, st)
		f.installs(t, 3, 250)
		f.appends(t, 3, 250, entries(3, 251, 253))
		f.installs(t, 3, 250)
		f.appendsAs(t, 4, 3, 250, entries(4, 251, 252))
		_, last = span(t, st.Logs())
		assert.EqualValues(t, 252, last, "entry 253 is of another leader")
		f.appends(t, 4, 252, entries(4, 253, 253))
		f.appends(t, 4, 253, nil)
		f.ends(t)
		st = reopen()
		first, last = span(t, st.Logs())
		assert.Equal(t, []uint64{251, 253}, []uint64{first, last})
		var entry raft.Log
		require.NoError(t, st.Logs().GetLog(251, &entry))
		assert.EqualValues(t, 4, entry.Term)
		assert.ErrorIs(t, st.Logs().GetLog(249, &entry), raft.ErrLogNotFound)
	})
}

// The leader does not know that this node has more than its snapshot. Raft takes the snapshot's
// list of nodes, and does not look at the later one in the log, which stays: the process ends, and
// has the later one at the next start.
func TestALaterListOfNodesOutlivesASnapshot(t *testing.T) {
	onEach(t, func(t *testing.T, reopen func() *Store) {
		st := reopen()
		fill(t, st, 3, 1, 252)
		later := raft.Configuration{
			Servers: []raft.Server{{ID: "n1", Address: "n1"}, {ID: "n2", Address: "n2"},
				{ID: "n3", Address: "n3"}}}
		list := &raft.Log{Index: 253, Term: 3, Type: raft.LogConfiguration,
			Data: raft.EncodeConfiguration(later)}
		require.NoError(t, st.Logs().StoreLog(list))
		require.NoError(t, st.Logs().StoreLogs(entries(3, 254, 255)))
		var ended error
		st.record.fatal = func(err error) { ended = err }
		f := follow(t, st)
		require.Equal(t, later, f.raft.GetConfiguration().Configuration())
		f.installs(t, 3, 252)
		require.ErrorContains(t, ended, "entry 253")
		f.ends(t)

		st = reopen()
		f = follow(t, st)
		assert.Equal(t, later, f.raft.GetConfiguration().Configuration())
		f.ends(t)
		_, last := span(t, st.Logs())
		assert.EqualValues(t, 255, last)
	})
}

// A snapshot that was long on its way comes after a newer one: what this node has applied would be
// taken back.
func TestAnOlderSnapshotIsRefused(t *testing.T) {
	onEach(t, func(t *testing.T, reopen func() *Store) {
		f := follow(t, reopen())
		f.installs(t, 3, 250)
		f.appends(t, 3, 250, entries(3, 251, 251))
		require.ErrorContains(t, f.install(3, 240), "nothing was changed")
		f.appends(t, 3, 251, entries(3, 252, 252))
		f.appends(t, 3, 252, nil)
		assert.EqualValues(t, 252, f.raft.CommitIndex())
		f.ends(t)
	})
}

// A snapshot of the leader's is installed while raft writes one of its own. The older one comes to
// nothing, and raft deletes only what is still there.
func TestASnapshotThatIsOvertakenComesToNothing(t *testing.T) {
	onEach(t, func(t *testing.T, reopen func() *Store) {
		st := reopen()
		fill(t, st, 3, 1, 240)
		require.NoError(t, st.Logs().DeleteRange(1, 100))
		own, leaders := beginSnapshot(t, st, 3, 230, "state"), beginSnapshot(t, st, 3, 250, "state")
		require.NoError(t, leaders.Close())
		require.NoError(t, st.Logs().DeleteRange(101, 240))
		require.ErrorContains(t, own.Close(), "nothing was changed")
		assert.EqualValues(t, 250, st.logs.snapshots.newest().Index)

		require.NoError(t, st.Logs().DeleteRange(101, 200),
			"as raft does behind its own, begun before")
		first, last := span(t, st.Logs())
		assert.Equal(t, []uint64{0, 0}, []uint64{first, last})
		var entry raft.Log
		require.NoError(t, st.Logs().GetLog(250, &entry))
		assert.EqualValues(t, 3, entry.Term, "the term in front of the next entry")
		require.NoError(t, st.Logs().StoreLogs(entries(3, 251, 252)))
		require.NoError(t, st.Logs().DeleteRange(101, 200))
		first, last = span(t, st.Logs())
		assert.Equal(t, []uint64{251, 252}, []uint64{first, last})
		first, last = span(t, reopen().Logs())
		assert.Equal(t, []uint64{251, 252}, []uint64{first, last})
	})
}

// Raft deletes what its own snapshot covers while it deletes the whole log because of the leader's.
// Both begin while another write is in progress, so neither has changed the log when the other one
// looks at it.
func TestDeletionsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := open(t, Config{Memory: new(Memory)})
		fill(t, st, 3, 101, 240)
		snapshot(t, st, 3, 250, "state")
		st.logs.mu.Lock()
		var deletions sync.WaitGroup
		for _, last := range []uint64{240, 200} {
			deletions.Go(func() { assert.NoError(t, st.Logs().DeleteRange(101, last)) })
			synctest.Wait()
		}
		st.logs.mu.Unlock()
		deletions.Wait()
		for _, log := range []raft.LogStore{st.Logs(), st.engine} {
			first, last := span(t, log)
			assert.Equal(t, []uint64{0, 0}, []uint64{first, last})
		}
	})
}

// A process ends before the deletion of such a log; the next start deletes it.
func TestADroppedLogGoesAtTheStart(t *testing.T) {
	for steps := range 2 {
		memory := new(Memory)
		left := steps
		cut := withFault(func(op Op, _, _ uint64) error {
			if op == OpDelete {
				if left--; left < 0 {
					return errors.New("the process ended")
				}
			}
			return nil
		})
		st := open(t, Config{Memory: memory})
		fill(t, st, 1, 1, 100)
		fill(t, st, 2, 101, 700)
		require.NoError(t, st.Votes().SetUint64([]byte(keyCurrentTerm), 3))
		snapshot(t, st, 3, 256, "state")
		require.NoError(t, st.Close())
		st, err := Open(Config{NodeID: "n1", Memory: memory, Wrap: cut, Fatal: func(error) {}})
		require.Equal(t, steps < 1, err != nil)
		if err == nil {
			require.NoError(t, st.Close())
		}
		first, last := span(t, open(t, Config{Memory: memory}).Logs())
		require.Equal(t, []uint64{0, 0}, []uint64{first, last}, "%d steps", steps)
	}
}

// follower is raft on a store, and a transport that a test sends it a leader's calls with.
type follower struct {
	raft *raft.Raft
	to   raft.ServerAddress
	from *raft.InmemTransport
}

func follow(t *testing.T, st *Store) *follower {
	t.Helper()
	cfg := raftConfig()
	cfg.HeartbeatTimeout, cfg.ElectionTimeout = time.Hour, time.Hour // it only follows
	to, transport := raft.NewInmemTransport("n1")
	from, leader := raft.NewInmemTransport("n2")
	leader.Connect(to, transport)
	transport.Connect(from, leader)
	node, err := raft.NewRaft(cfg, new(counter), st.Logs(), st.Votes(), st.Snapshots(), transport)
	require.NoError(t, err)
	return &follower{node, to, leader}
}

func (f *follower) ends(t *testing.T) { require.NoError(t, f.raft.Shutdown().Error()) }

var leaderHeader = raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("n2"),
	Addr: []byte("n2")}

func (f *follower) installs(t *testing.T, term, index uint64) {
	t.Helper()
	require.NoError(t, f.install(term, index))
}

func (f *follower) install(term, index uint64) error {
	state := []byte("250\n")
	members := raft.Configuration{
		Servers: []raft.Server{{ID: "n1", Address: "n1"}, {ID: "n2", Address: "n2"}}}
	var resp raft.InstallSnapshotResponse
	return f.from.InstallSnapshot("n1", f.to, &raft.InstallSnapshotRequest{
		RPCHeader: leaderHeader, SnapshotVersion: raft.SnapshotVersionMax, Term: term,
		LastLogIndex: index, LastLogTerm: term,
		Configuration: raft.EncodeConfiguration(members), ConfigurationIndex: 1,
		Size: int64(len(state)),
	}, &resp, io.NopCloser(bytes.NewReader(state)))
}

func (f *follower) appends(t *testing.T, term, previous uint64, batch []*raft.Log) {
	t.Helper()
	f.appendsAs(t, term, term, previous, batch)
}

func (f *follower) appendsAs(t *testing.T, term, previousTerm, previous uint64, batch []*raft.Log) {
	t.Helper()
	var resp raft.AppendEntriesResponse
	require.NoError(t, f.from.AppendEntries("n1", f.to, &raft.AppendEntriesRequest{
		RPCHeader: leaderHeader, Term: term, PrevLogEntry: previous, PrevLogTerm: previousTerm,
		Entries: batch, LeaderCommitIndex: previous,
	}, &resp))
	require.True(t, resp.Success)
}
