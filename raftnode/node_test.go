package raftnode

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
	"zamok/session"
)

// TestThreeNodesOnLoopback is the whole of a node's life in small: a cluster begins, grants, hands
// over and closes.
func TestThreeNodesOnLoopback(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), answerWait)
	defer cancel()
	var listeners []net.Listener
	text := ""
	for i := range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		listeners = append(listeners, l)
		text += fmt.Sprintf(",n%d=%v", i+1, l.Addr())
	}
	list, err := peer.ParseList(text[1:])
	require.NoError(t, err)

	nodes := make([]*Node, 3)
	opened := make(chan error, 3)
	for i := range nodes {
		go func() {
			var err error
			nodes[i], err = Open(ctx, Config{
				ID: fmt.Sprintf("n%d", i+1), Store: store.Config{Memory: &store.Memory{}},
				Peers:  peer.Config{List: list, Listener: listeners[i]},
				Client: "client" + fmt.Sprint(i+1),
				Fatal:  func(err error) { t.Errorf("fatal: %v", err) },
				Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
			})
			opened <- err
		}()
	}
	for range nodes {
		require.NoError(t, <-opened)
	}
	leader := func() (leads *Node) {
		until(t, "an epoch opens", func() bool {
			for _, n := range nodes {
				if n.Status().Leading {
					leads = n
				}
			}
			return leads != nil
		})
		return leads
	}
	id := done(t, &fsm.OpenSession{Secret: session.Hash{1},
		Settings: session.Settings{TTL: clock.Minute}}, nodes...).Result.Session
	a := done(t, &fsm.Acquire{
		Session: id, Ticket: 1, Items: []fsm.Item{{Name: "x", Mode: fsm.Exclusive}},
		Wait: fsm.Forever,
	}, nodes...)
	require.Equal(t, fsm.Granted, a.Result.State)

	first := leader()
	require.NoError(t, first.Close())
	for i, n := range nodes {
		if n == first {
			nodes = append(nodes[:i], nodes[i+1:]...)
			break
		}
	}
	done(t, nil, nodes...)
	leader().View(func(m *fsm.Machine) {
		require.True(t, m.Holds("x", a.Result.Token, fsm.TicketRef{}))
		require.NoError(t, m.Check())
	})
	for _, n := range nodes {
		require.NoError(t, n.Close())
	}
}
