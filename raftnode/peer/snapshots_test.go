package peer

import (
	"bytes"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A snapshot comes to who has everything in it, since an answer was lost or the network kept it for
// long. The leader's log may hold a later list of nodes, which raft would not take again: it has
// the entry.
func TestASnapshotOfWhatIsKnownTakesNothingBack(t *testing.T) {
	for name, ahead := range map[string]uint64{"of this leader": 0, "of the next one": 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, all := threeRunning(t)
				defer w.stopAll()
				before, first := all[0].GetConfiguration(), uint64(1)
				leader := w.retryOnLeader(func(leader *raftProcess) raft.Future {
					return leader.AddNonvoter("n4-0000000000000000", "h4:5751", 0, time.Second)
				}, all[:]...)
				to := all[0]
				if leader == to {
					to = all[1]
				}
				to.applied.restores = true // if raft installs anything, it goes through
				time.Sleep(time.Second)
				applied := to.AppliedIndex()
				require.Greater(t, applied, first)
				snapshot := func(index uint64) error {
					return installing(leader, to, func(s *raft.InstallSnapshotRequest) {
						s.Configuration, s.ConfigurationIndex = raft.EncodeConfiguration(
							before.Configuration()), first
						s.Term, s.LastLogIndex, s.LastLogTerm = to.CurrentTerm()+ahead, index,
							to.CurrentTerm()
					})
				}
				for _, index := range []uint64{first, applied - 1, applied} {
					require.NoError(t, snapshot(index))
					require.Len(t, to.GetConfiguration().Configuration().Servers, 4,
						"a snapshot up to %d", index)
				}
				assert.Equal(t, applied, to.AppliedIndex())
				assert.Equal(t, acknowledged, to.applied.count("before "))
				w.serves(all, "after ")
			})
		})
	}
}

// A snapshot of an earlier leader changes nothing either, and the answer to its sender has the
// later term.
func TestASnapshotOfAnEarlierLeaderIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, all := threeRunning(t)
		defer w.stopAll()
		leader := w.leader(10*time.Second, all[:]...)
		to := all[0]
		if leader == to {
			to = all[1]
		}
		request := raft.InstallSnapshotRequest{RPCHeader: header(leader), SnapshotVersion: 1,
			Term: to.CurrentTerm() - 1, LastLogIndex: 1,
			Configuration: raft.EncodeConfiguration(to.GetConfiguration().Configuration())}
		var response raft.InstallSnapshotResponse
		require.NoError(t, leader.trans.InstallSnapshot(to.ID(), raft.ServerAddress(to.address),
			&request, &response, strings.NewReader("")))
		assert.False(t, response.Success)
		assert.Equal(t, to.CurrentTerm(), response.Term)
	})
}

// followed is a server that follows what the test sends it in the name of n1, which runs no raft.
type followed struct {
	*testCluster
	*nodeData
	leader testNode
}

func newFollowed(t *testing.T) followed {
	w := newTestCluster(t, false)
	d1, _, d3 := threeDisks(t, mustList(t, threeNodes))
	d3.neverCampaigns = true
	leader := openNode(t, w.testNetwork,
		Config{ID: d1.Name, Incarnation: d1.Incarnation, List: d1.list, Advertise: d1.address})
	_, err := leader.Transport(hclog.NewNullLogger())
	require.NoError(t, err)
	return followed{w, d3, leader}
}

// starts runs raft on a log and a state machine of the test's.
func (f followed) starts(logs raft.LogStore, fsm raft.FSM) (r *raft.Raft, end func()) {
	m := openNode(f.T, f.testNetwork, Config{
		ID: f.Name, Incarnation: f.Incarnation, List: f.list, Advertise: f.address,
		Condition: f.condition, Term: f.term,
	})
	tr, err := m.Transport(hclog.NewNullLogger())
	require.NoError(f, err)
	r, err = raft.NewRaft(f.config(), fsm, logs, f.logs, f.snapshots, tr)
	require.NoError(f, err)
	tr.Start(r)
	return r, func() {
		ended := r.Shutdown()
		require.NoError(f, tr.Close())
		require.NoError(f, ended.Error())
		require.NoError(f, m.Close())
		require.NoError(f, f.leader.Close())
	}
}

func (f followed) header() raft.RPCHeader { return f.leader.transport.header() }

// appends sends entries of term 5, which are committed with the last of them.
func (f followed) appends(prev, prevTerm uint64, entries ...*raft.Log) error {
	return f.leader.transport.AppendEntries(f.ID(), raft.ServerAddress(f.address),
		&raft.AppendEntriesRequest{
			RPCHeader: f.header(), Term: 5, PrevLogEntry: prev, PrevLogTerm: prevTerm,
			Entries:           entries,
			LeaderCommitIndex: prev + uint64(len(entries)),
		}, &raft.AppendEntriesResponse{})
}

// installs sends a snapshot up to entry 4 of term 5, with the first list of nodes.
func (f followed) installs() error {
	data := make([]byte, 1<<10)
	return f.leader.transport.InstallSnapshot(f.ID(), raft.ServerAddress(f.address),
		&raft.InstallSnapshotRequest{
			RPCHeader: f.header(), SnapshotVersion: 1, Term: 5, LastLogIndex: 4, LastLogTerm: 5,
			Size:          int64(len(data)),
			Configuration: raft.EncodeConfiguration(f.firstList()), ConfigurationIndex: 1,
		}, &raft.InstallSnapshotResponse{}, bytes.NewReader(data))
}

func (f followed) firstList() raft.Configuration {
	return f.condition(f.Server).Initial.Configuration()
}

// laterList is entry 6: a list of four nodes.
func (f followed) laterList() *raft.Log {
	list := f.firstList()
	list.Servers = append(list.Servers, raft.Server{ID: "n4-0000000000000000", Address: "h4:5751"})
	return &raft.Log{Index: 6, Term: 5, Type: raft.LogConfiguration,
		Data: raft.EncodeConfiguration(list)}
}

func command(index uint64) *raft.Log { return &raft.Log{Index: index, Term: 5, Data: []byte("x")} }

// slowLog stops raft's main loop in StoreLogs until the gate is open.
type slowLog struct {
	*raft.InmemStore
	gate chan struct{} // nil = open
}

func (l *slowLog) StoreLogs(entries []*raft.Log) error {
	if l.gate != nil {
		<-l.gate
	}
	return l.InmemStore.StoreLogs(entries)
}

// A snapshot is not known when it comes, and is when raft takes it: until then raft stores what is
// behind it.
func TestASnapshotBehindAnAppendTakesNothingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFollowed(t)
		log := &slowLog{InmemStore: f.logs}
		r, end := f.starts(log, &entryRecorder{restores: true})
		defer end()
		var first raft.Log
		require.NoError(t, f.logs.GetLog(1, &first))
		require.NoError(t, f.appends(1, first.Term, command(2), command(3)))
		log.gate = make(chan struct{})
		var calls sync.WaitGroup
		calls.Go(func() {
			assert.NoError(t, f.appends(3, 5, command(4), command(5), f.laterList()))
		})
		synctest.Wait()
		calls.Go(func() { assert.ErrorContains(t, f.installs(), errApplied.Error()) })
		sleepVirtual(100 * time.Millisecond)
		synctest.Wait()
		close(log.gate)
		calls.Wait()
		require.NoError(t, f.installs(), "sent again")
		assert.Len(t, r.GetConfiguration().Configuration().Servers, 4)
		assert.EqualValues(t, 6, r.AppliedIndex())
	})
}

// slowStart is a state machine that takes two seconds for the snapshot with which raft starts.
type slowStart struct {
	entryRecorder
	restored int
}

func (s *slowStart) Restore(state io.ReadCloser) error {
	if s.restored++; s.restored == 1 {
		<-time.After(2 * time.Second)
	}
	return state.Close()
}

// A snapshot comes while raft is being made.
func TestASnapshotWhileRaftStartsTakesNothingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFollowed(t)
		_, unused := raft.NewInmemTransport("")
		own, err := f.snapshots.Create(1, 4, 5, f.firstList(), 1, unused)
		require.NoError(t, err)
		require.NoError(t, own.Close())
		require.NoError(t,
			f.logs.StoreLogs([]*raft.Log{command(2), command(3), command(4), command(5),
				f.laterList()}))
		require.NoError(t, f.logs.SetUint64([]byte("CurrentTerm"), 5))
		fsm := &slowStart{}
		var calls sync.WaitGroup
		calls.Go(func() {
			<-time.After(time.Second)
			assert.NoError(t, f.installs())
		})
		r, end := f.starts(f.logs, fsm)
		defer end()
		calls.Wait()
		assert.Equal(t, 1, fsm.restored, "at the start only")
		assert.Len(t, r.GetConfiguration().Configuration().Servers, 4)
	})
}

// tillOpen hands out its last bytes when the gate is open.
type tillOpen struct {
	io.Reader
	gate chan struct{}
	half bool
}

func (r *tillOpen) Read(b []byte) (int, error) {
	if r.half {
		<-r.gate
	}
	r.half = true
	return r.Reader.Read(b[:min(len(b), 512)])
}

// While the rest of a known snapshot is on its way the node comes to a later term, and its answer
// has that one.
func TestTheAnswerToAKnownSnapshotHasTheTermOfTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, all := threeRunning(t)
		defer w.stopAll()
		leader := w.leader(10*time.Second, all[:]...)
		to := all[0]
		if leader == to {
			to = all[1]
		}
		sleepVirtual(time.Second)
		term := to.CurrentTerm()
		body := &tillOpen{Reader: bytes.NewReader(make([]byte, 1<<10)), gate: make(chan struct{})}
		var response raft.InstallSnapshotResponse
		var calls sync.WaitGroup
		calls.Go(func() {
			assert.NoError(t, leader.trans.InstallSnapshot(to.ID(), raft.ServerAddress(to.address),
				&raft.InstallSnapshotRequest{
					RPCHeader: header(leader), SnapshotVersion: 1, Term: term, LastLogIndex: 2,
					LastLogTerm: 1, Size: 1 << 10,
					Configuration: raft.EncodeConfiguration(to.GetConfiguration().Configuration()),
				}, &response, body))
		})
		sleepVirtual(time.Second)
		require.NoError(t, leader.LeadershipTransfer().Error())
		sleepVirtual(time.Second)
		require.Greater(t, to.CurrentTerm(), term)
		close(body.gate)
		calls.Wait()
		assert.Equal(t, to.CurrentTerm(), response.Term)
	})
}

// A snapshot that is shorter than its request says, or has a size that nothing can have, is not
// installed. One that is longer is cut off there; the state machine finds that by its checksum.
func TestASnapshotOfAnotherSizeIsNotInstalled(t *testing.T) {
	for _, size := range []int64{-1 << 63, -1, 1<<20 + 1, 1<<63 - 1} {
		synctest.Test(t, func(t *testing.T) {
			w, all := threeRunning(t)
			defer w.stopAll()
			to := all[0]
			to.applied.restores = true
			before, servers := to.AppliedIndex(), to.GetConfiguration().Configuration()
			assert.Error(t, installing(all[1], to, func(s *raft.InstallSnapshotRequest) {
				s.LastLogIndex, s.LastLogTerm, s.Size = to.LastIndex()+1, to.CurrentTerm(), size
			}), "%d", size)
			assert.Equal(t, servers, to.GetConfiguration().Configuration())
			assert.GreaterOrEqual(t, to.AppliedIndex(), before)
			assert.Equal(t, acknowledged, to.applied.count("before "))
			w.serves(all, "after ")
		})
	}
}
