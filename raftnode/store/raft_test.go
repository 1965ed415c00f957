package store

import (
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A node that stops and starts again finds its machine where it was: the newest
// snapshot, and the log after it.
func TestRaftFindsEverythingAgain(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, reopen func() *Store) {
		st := reopen()
		bootstrap(t, st)
		var applied int
		for round := range 3 {
			node, machine := startRaft(t, st)
			require.NoError(t, node.Barrier(0).Error())
			require.Equal(t, applied, machine.count(), "round %d", round)
			for range 30 {
				require.NoError(t, apply(node, "x").Error())
				applied++
			}
			require.NoError(t, node.Snapshot().Error())
			for range 7 {
				require.NoError(t, apply(node, "x").Error())
				applied++
			}
			require.NoError(t, node.Shutdown().Error())
			st = reopen()
			require.Equal(t, "unmarked", stateOf(st))
		}
		snapshots, err := st.Snapshots().List()
		require.NoError(t, err)
		assert.Len(t, snapshots, snapshotsKept)
		first, last := span(t, st.Logs())
		assert.Less(t, last-first, uint64(30), "the log was compacted")
	})
}

// bootstrap makes st the one voter of a cluster.
func bootstrap(t *testing.T, st *Store) {
	t.Helper()
	_, transport := raft.NewInmemTransport("n1")
	require.NoError(t, raft.BootstrapCluster(raftConfig(), st.Logs(), st.Votes(), st.Snapshots(),
		transport,
		raft.Configuration{Servers: []raft.Server{{ID: "n1", Address: "n1"}}}))
}

// apply proposes a command.
func apply(node *raft.Raft, data string) raft.ApplyFuture {
	return node.ApplyLog(raft.Log{Data: []byte(data), Extensions: Checksum([]byte(data))}, 0)
}

func raftConfig() *raft.Config {
	conf := raft.DefaultConfig()
	conf.LocalID = "n1"
	conf.Logger = hclog.NewNullLogger()
	conf.HeartbeatTimeout, conf.ElectionTimeout = 50*time.Millisecond, 50*time.Millisecond
	conf.LeaderLeaseTimeout, conf.CommitTimeout = 50*time.Millisecond, 5*time.Millisecond
	conf.SnapshotInterval, conf.TrailingLogs = time.Hour, 16 // snapshots only when asked
	return conf
}

// startRaft runs the one voter, and waits until it leads.
func startRaft(t *testing.T, st *Store) (*raft.Raft, *counter) {
	t.Helper()
	machine := new(counter)
	_, transport := raft.NewInmemTransport("n1")
	node, err := raft.NewRaft(raftConfig(), machine, st.Logs(), st.Votes(), st.Snapshots(),
		transport)
	require.NoError(t, err)
	select {
	case leads := <-node.LeaderCh():
		require.True(t, leads)
	case <-time.After(30 * time.Second):
		require.Fail(t, "no leader after 30 s")
	}
	return node, machine
}

// counter is a state machine that counts its entries. Its snapshots are as heavy
// as weight says, in bytes.
type counter struct {
	mu      sync.Mutex
	entries int
	weight  int
}

func (c *counter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.entries
}

func (c *counter) grow(bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.weight += bytes
}

func (c *counter) Apply(*raft.Log) any {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries++
	return nil
}

func (c *counter) Snapshot() (raft.FSMSnapshot, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return countSnapshot{c.entries, c.weight}, nil
}

func (c *counter) Restore(from io.ReadCloser) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer from.Close()
	_, err := fmt.Fscan(from, &c.entries)
	return err
}

type countSnapshot struct{ entries, weight int }

func (s countSnapshot) Persist(sink raft.SnapshotSink) error {
	if _, err := fmt.Fprintln(sink, s.entries); err != nil {
		return err
	}
	if _, err := sink.Write(make([]byte, s.weight)); err != nil {
		return err
	}
	return sink.Close()
}

func (countSnapshot) Release() {}
