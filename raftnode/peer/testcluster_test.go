package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/raftnode/tail"
)

// nodeData is what of a node outlives its process.
type nodeData struct {
	Server
	address        string
	cluster        ClusterID
	list           List
	logs           *raft.InmemStore
	snapshots      *raft.InmemSnapshotStore
	neverCampaigns bool // it never stands for election
	waitWritten    func(context.Context, uint64) error

	mu       sync.Mutex // guards what follows
	initial  InitialMembers
	owed     tail.End
	owesLess error // why it can't be made to owe anything
}

func newNodeData(server Server, list List) *nodeData {
	return &nodeData{
		Server: server, address: "h" + server.Name[1:] + ":5751", list: list,
		logs: raft.NewInmemStore(), snapshots: raft.NewInmemSnapshotStore(),
	}
}

// agree is the first step of bootstrap.
func (d *nodeData) agree(f InitialMembers) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.initial = f
}

// condition is the state of a disk; HasData is read before Initial, as Config.Condition asks.
func (d *nodeData) condition(Server) Condition {
	last, _ := d.logs.LastIndex() // fails never
	d.mu.Lock()
	defer d.mu.Unlock()
	return Condition{HasData: last > 0, Initial: d.initial}
}

// term is the one that raft wrote last; 0 before the first.
func (d *nodeData) term() uint64 {
	term, _ := d.logs.GetUint64([]byte("CurrentTerm"))
	return term
}

// tail is where the log ends, and what the node owes.
func (d *nodeData) tail() tail.State {
	var last raft.Log
	index, _ := d.logs.LastIndex()
	_ = d.logs.GetLog(index, &last)
	d.mu.Lock()
	defer d.mu.Unlock()
	return tail.State{Log: tail.End{Term: last.Term, Index: last.Index}, Owed: d.owed}
}

func (d *nodeData) owe(end tail.End) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.owed = end
}

// config is Raft at the settings of the project.
func (d *nodeData) config() *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = d.ID()
	c.HeartbeatTimeout, c.ElectionTimeout = 250*time.Millisecond, 250*time.Millisecond
	c.LeaderLeaseTimeout, c.CommitTimeout = 125*time.Millisecond, 50*time.Millisecond
	if d.neverCampaigns {
		c.HeartbeatTimeout, c.ElectionTimeout = time.Hour, time.Hour
	}
	c.Logger = hclog.NewNullLogger()
	return c
}

// bootstrap writes the first entry, as Decide allows it and sometimes doesn't.
func (d *nodeData) bootstrap(t *testing.T) {
	_, transport := raft.NewInmemTransport(raft.ServerAddress(d.address))
	require.NoError(t, raft.BootstrapCluster(d.config(), d.logs, d.logs, d.snapshots, transport,
		d.condition(d.Server).Initial.Configuration()))
}

// clone copies a disk, as a copy of a virtual machine does.
func (d *nodeData) clone(t *testing.T, address string) *nodeData {
	c := newNodeData(d.Server, d.list)
	c.address, c.cluster, c.initial = address, d.cluster, d.initial
	first, err := d.logs.FirstIndex()
	require.NoError(t, err)
	last, err := d.logs.LastIndex()
	require.NoError(t, err)
	for i := first; i <= last; i++ {
		var entry raft.Log
		require.NoError(t, d.logs.GetLog(i, &entry))
		require.NoError(t, c.logs.StoreLog(&entry))
	}
	for _, key := range []string{"CurrentTerm", "LastVoteTerm"} {
		value, _ := d.logs.GetUint64([]byte(key)) // 0, if never set
		require.NoError(t, c.logs.SetUint64([]byte(key), value))
	}
	candidate, _ := d.logs.Get([]byte("LastVoteCand"))
	require.NoError(t, c.logs.Set([]byte("LastVoteCand"), candidate))
	return c
}

// entryRecorder is a state machine that keeps the entries.
type entryRecorder struct {
	mu       sync.Mutex
	entries  []string
	restores bool
}

func (j *entryRecorder) Apply(l *raft.Log) any {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, string(l.Data))
	return nil
}

func (j *entryRecorder) Snapshot() (raft.FSMSnapshot, error) { return nil, errors.ErrUnsupported }

// Restore takes a snapshot without anything in it, as installing sends it, if the test wants that.
func (j *entryRecorder) Restore(state io.ReadCloser) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.restores {
		return errors.ErrUnsupported
	}
	j.entries = nil
	return state.Close()
}

// count is how many different entries begin with prefix: one whose outcome was unknown is proposed
// again.
func (j *entryRecorder) count(prefix string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	different := map[string]struct{}{}
	for _, e := range j.entries {
		if strings.HasPrefix(e, prefix) {
			different[e] = struct{}{}
		}
	}
	return len(different)
}

// raftProcess is a running node.
type raftProcess struct {
	*nodeData
	*raft.Raft
	applied *entryRecorder
	member  testNode // of the peer network; unused on plain streams
	trans   *Transport
	close   func()
}

// testCluster is a fabric with nodes on it, that speak through the handshake or through plain
// streams.
type testCluster struct {
	*testing.T
	*testNetwork
	plain   bool
	running map[*raftProcess]struct{} // guarded by the fabric's mutex while nodes start at once
}

func newTestCluster(t *testing.T, plain bool) *testCluster {
	return &testCluster{t, newTestNetwork(), plain, map[*raftProcess]struct{}{}}
}

func (w *testCluster) start(d *nodeData) *raftProcess {
	if w.plain {
		plain := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
			Stream: plainStreams{w.listen(d.address), w.testNetwork}, Logger: hclog.NewNullLogger(),
			MaxPool: idleConnsMax, MaxRPCsInFlight: rpcsInFlight, Timeout: handshakeTimeoutDefault,
		})
		return w.runOver(plain, &raftProcess{nodeData: d, close: func() {
			assert.NoError(w, plain.Close())
			w.closeMatching(func(c *testConn) bool {
				return c.from == d.address || c.to == d.address
			})
		}})
	}
	return w.run(d, openNode(w, w.testNetwork, Config{
		ID: d.Name, Incarnation: d.Incarnation, Cluster: d.cluster, List: d.list,
		Advertise: d.address,
		Condition: d.condition, Term: d.term, WaitWritten: d.waitWritten, Tail: d.tail,
		Owe: w.makeOwe,
	}))
}

// makeOwe is how the leader among the running has another one owe something.
func (w *testCluster) makeOwe(_ context.Context, server Node, end tail.End) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for p := range w.running {
		if p.ID() == raft.ServerID(server.ID) {
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.owesLess == nil {
				p.owed = end
			}
			return p.owesLess
		}
	}
	return errors.New("it does not run")
}

// run starts Raft on a network.
func (w *testCluster) run(d *nodeData, m testNode) *raftProcess {
	transport, err := m.Transport(hclog.NewNullLogger())
	require.NoError(w, err)
	p := w.runOver(transport, &raftProcess{
		nodeData: d, member: m, trans: transport, close: func() { assert.NoError(w, m.Close()) },
	})
	transport.Start(p.Raft)
	return p
}

func (w *testCluster) runOver(transport raft.Transport, p *raftProcess) *raftProcess {
	p.applied = &entryRecorder{}
	r, err := raft.NewRaft(p.config(), p.applied, p.logs, p.logs, p.snapshots, transport)
	require.NoError(w, err)
	p.Raft = r
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running[p] = struct{}{}
	return p
}

// stop ends a process as kill does: its connections break at once.
func (w *testCluster) stop(p *raftProcess) {
	ended := p.Shutdown()
	p.close()
	require.NoError(w, ended.Error())
	delete(w.running, p)
}

func (w *testCluster) stopAll() {
	for p := range w.running {
		w.stop(p)
	}
}

// leader waits for one of ps to lead and to have committed something, and returns it; nil: none
// does within the time.
func (w *testCluster) leader(within time.Duration, ps ...*raftProcess) *raftProcess {
	deadline := time.Now().Add(within)
	for ; time.Now().Before(deadline); sleepVirtual(10 * time.Millisecond) {
		for _, p := range ps {
			if p.State() == raft.Leader && p.Apply([]byte("barrier"), time.Second).Error() == nil {
				return p
			}
		}
	}
	return nil
}

// retryOnLeader has the leader among ps do something, and asks the next leader if that one does not
// lead any more: so it may be done twice. It returns the leader that did it.
func (w *testCluster) retryOnLeader(do func(leader *raftProcess) raft.Future,
	ps ...*raftProcess) *raftProcess {
	deadline := time.Now().Add(30 * time.Second)
	for {
		leader := w.leader(time.Until(deadline), ps...)
		require.NotNil(w, leader)
		err := do(leader).Error()
		if err == nil {
			return leader
		}
		require.True(w, time.Now().Before(deadline), "%s: %v", leader.Name, err)
	}
}

// write has n entries acknowledged by the leader among ps, and returns the leader that took the
// last one.
func (w *testCluster) write(prefix string, n int, ps ...*raftProcess) (leader *raftProcess) {
	for i := range n {
		leader = w.retryOnLeader(func(leader *raftProcess) raft.Future {
			return leader.Apply(fmt.Append(nil, prefix, i), time.Second)
		}, ps...)
	}
	return leader
}

// requireApplied waits for n entries with prefix on p.
func (w *testCluster) requireApplied(p *raftProcess, prefix string, n int) {
	// Raft waits up to 10 s between two calls to a peer that was away.
	deadline := time.Now().Add(30 * time.Second)
	for ; p.applied.count(prefix) < n; sleepVirtual(10 * time.Millisecond) {
		require.True(w, time.Now().Before(deadline), "%s has %d of %d entries %q",
			p.Name, p.applied.count(prefix), n, prefix)
	}
	require.Equal(w, n, p.applied.count(prefix))
}

// plainStreams is the stream layer that hashicorp/raft brings, but over a fabric.
type plainStreams struct {
	*testListener
	fabric *testNetwork
}

func (s plainStreams) Dial(to raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return s.fabric.dialer(s.address)(ctx, string(to))
}
