package raftnode

import (
	"context"
	"encoding/binary"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/fsm"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
	"zamok/session"
)

// The server is notified when an epoch begins, and when it has ended.
func TestEpochIsAnnounced(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	list, err := peer.ParseList("n1=" + listener.Addr().String())
	require.NoError(t, err)
	var n *Node
	opened, announced := make(chan struct{}), make(chan bool, 10)
	n, err = Open(t.Context(), Config{
		ID: "n1", Store: store.Config{Memory: &store.Memory{}},
		Peers: peer.Config{List: list, Listener: listener}, Fatal: func(error) {},
		Epoch: func(open bool) {
			<-opened
			assert.False(t, n.proposer.leads(),
				"nothing is taken before the epoch is announced, nor after its end is")
			announced <- open
		},
	})
	close(opened)
	require.NoError(t, err)
	require.True(t, <-announced)
	until(t, "the queue opens", n.proposer.leads)
	require.NoError(t, n.Kill())
	require.False(t, <-announced)
	require.Empty(t, announced)
}

// One entry expires at most fsm.ExpirationsMax. The rest goes into the next entry at once, not at
// the epoch's next tick: after a network failure a hundred thousand sessions may expire together.
func TestManyExpirationsDoNotWaitForTheTick(t *testing.T) {
	inLoneBubble(t, func(t *testing.T, n *Node) {
		const sessions = 4 * fsm.ExpirationsMax
		opened := make(chan error, sessions)
		for i := range uint64(sessions) {
			var secret session.Hash
			binary.BigEndian.PutUint64(secret[:], i+1)
			n.Submit(t.Context(), &fsm.OpenSession{Secret: secret,
				Settings: session.Settings{TTL: fsm.TTLMin}}, func(a Answer, err error) {
				assert.Equal(t, fsm.OK, a.Result.Code)
				opened <- err
			})
		}
		for range sessions {
			require.NoError(t, <-opened)
		}
		left := func() (live int) {
			n.View(func(m *fsm.Machine) { live = m.Counts().Sessions })
			return live
		}
		for left() == sessions {
			time.Sleep(time.Millisecond)
		}
		began := time.Now()
		for left() > 0 {
			time.Sleep(time.Millisecond)
		}
		assert.Less(t, time.Since(began), epochTick)
	})
}

// Entries are proposed while refusals of acquisitions that waited for too long are answered: an
// answer may read the state machine, which an entry that is applied can keep busy.
func TestEntriesDoNotWaitForRefusals(t *testing.T) {
	inLoneBubble(t, func(t *testing.T, n *Node) {
		time.Sleep(2 * maintenanceTick) // the announcement is out, nothing else is written
		var slow atomic.Bool
		slow.Store(true)
		n.View(func(*fsm.Machine) { // under its lock, as entries are applied
			n.cfg.Applied = func(*fsm.Machine, fsm.Applied) {
				if slow.Load() {
					time.Sleep(queueWaitMax)
				}
			}
		})
		// that an entry leaves some behind which have waited for too long
		const many = 4 * entryCommandsMax
		refused, hear := make(chan error, many), make(chan struct{})
		for range many {
			n.Submit(t.Context(), acquire(1), func(_ Answer, err error) {
				if err != nil {
					refused <- err
					<-hear
				}
			})
		}
		require.ErrorIs(t, <-refused, ErrOverloaded)
		soon, cancel := context.WithTimeout(t.Context(), 10*queueWaitMax)
		defer cancel()
		_, err := n.Propose(soon, &fsm.Drop{Session: 1})
		require.NoError(t, err)
		close(hear)
		slow.Store(false)
		time.Sleep(queueWaitMax)
	})
}

// Raft reports a failure only through the future of a proposal, and no goroutine waits for that
// during the first tick.
func TestARefusedProposalIsAnsweredSoon(t *testing.T) {
	inBubble(t, func(b *bubble) {
		leader := b.quietLeader()
		down := b.others(leader)[0]
		b.kill(down)
		require.NoError(b, b.fence(leader),
			"what it lacks is sent to it in vain, for as long as a transfer may take")
		transfer := leader.runs.latest.Load().raft.LeadershipTransferToServer(down.Node.self.ID(),
			"h:1")
		synctest.Wait()
		var notLeader *NotLeaderError
		began := time.Now()
		require.ErrorAs(b, b.fence(leader), &notLeader, "raft takes nothing while it hands over")
		require.GreaterOrEqual(b, time.Since(began), epochTick, "raft rejected it, not the queue")
		require.LessOrEqual(b, time.Since(began), 2*epochTick)
		require.Error(b, transfer.Error(), "no node is there to take over")
	})
}
