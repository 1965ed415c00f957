package raftnode

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
	"zamok/session"
)

// alone opens a cluster of one node in memory and waits for its epoch, and until it answers with
// the cluster's id.
func alone(t *testing.T) *Node {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	list, err := peer.ParseList("n1=" + l.Addr().String())
	require.NoError(t, err)
	n, err := Open(t.Context(), Config{
		ID: "n1", Store: store.Config{Memory: &store.Memory{}},
		Peers: peer.Config{List: list, Listener: l},
		Fatal: func(err error) { t.Errorf("fatal: %v", err) },
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Kill()) })
	until(t, "an epoch opens",
		func() bool { return n.Status().Leading && n.store.Identity().Cluster != (store.ID{}) })
	return n
}

// proposeWait is how long a test waits for the answer of one node before it sends the command
// again.
const proposeWait = 5 * time.Second

// done proposes a command to the leader among nodes until it is done, as a client would: on a busy
// machine the leadership moves, and a queue that is not served for half a second refuses. Nil is a
// fence.
func done(t *testing.T, c fsm.Command, nodes ...*Node) (a Answer) {
	t.Helper()
	until(t, fmt.Sprintf("%T", c), func() bool {
		for _, n := range nodes {
			ctx, cancel := context.WithTimeout(t.Context(), proposeWait)
			var err error
			a, err = n.Propose(ctx, c)
			cancel()
			if err == nil {
				return true
			}
		}
		return false
	})
	return a
}

// What Freeze returns is the state at one index, however the node continues.
func TestFreezeIsTheStateAtOneIndex(t *testing.T) {
	n := alone(t)
	open := done(t, &fsm.OpenSession{Secret: session.Hash{1},
		Settings: session.Settings{TTL: clock.Minute}}, n)
	acquire := func(ticket uint64, name string) uint64 {
		a := done(t, &fsm.Acquire{
			Session: open.Result.Session, Ticket: ticket,
			Items: []fsm.Item{{Name: name, Mode: fsm.Exclusive}},
		}, n)
		require.Equal(t, fsm.Granted, a.Result.State)
		return a.Result.Token
	}
	before := acquire(1, "before")
	frozen := n.Freeze()
	after := acquire(2, "after")

	var file bytes.Buffer
	_, err := frozen.WriteTo(&file)
	require.NoError(t, err)
	m, err := fsm.Restore(&file)
	require.NoError(t, err)
	require.NoError(t, m.Check())
	require.True(t, m.Holds("before", before, fsm.TicketRef{}))
	require.False(t, m.Holds("after", after, fsm.TicketRef{}), "granted after the state was frozen")
	n.View(func(m *fsm.Machine) { require.True(t, m.Holds("after", after, fsm.TicketRef{})) })
}

// A change that is refused beforehand says so with an error that differs from an unknown outcome.
func TestARefusedChangeIsNoUnknownOne(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), answerWait)
	defer cancel()
	n := alone(t)
	err := n.Transfer(ctx, "nobody")
	require.ErrorIs(t, err, ErrRefused)
	change, ok := errors.AsType[*ChangeError](err)
	require.True(t, ok)
	require.Equal(t, "transfer", change.Change)
	require.EqualError(t, change.Reason,
		`"nobody" is no other voter of this cluster; nothing was changed`)
	require.EqualError(t, err, "raftnode: transfer: "+change.Reason.Error())
	require.ErrorIs(t, n.Join(ctx, peer.Node{ID: "N1", Address: "127.0.0.1:1"}), ErrRefused)
	require.ErrorIs(t, n.Join(ctx, peer.Node{ID: "n2", Address: n.network.Addr().String()}),
		ErrRefused)
	require.ErrorIs(t, n.Join(ctx, peer.Node{ID: "n1", Address: "127.0.0.1:1"}), ErrRefused)
	require.NoError(t, n.Join(ctx, peer.Node{ID: "n1", Address: n.network.Addr().String()}),
		"it is one already")
}
