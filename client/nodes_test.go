package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"zamok/api/zamokpb"
	"zamok/clock"
)

// Nodes move from address to address. However often they did, the present leader is found, and what
// was given stays.
func TestAddressesAreForgotten(t *testing.T) {
	n, err := newNodes(Config{Endpoints: []string{"given:1"}, Cluster: "c"})
	require.NoError(t, err)
	defer func() { require.NoError(t, n.close()) }()
	dead := errors.New("no node is there")
	n.record(n.all[0], dead, true)
	var first *node
	for i := range 2 * nodesMax {
		one, err := n.nodeAt(fmt.Sprintf("moved:%d", i))
		require.NoError(t, err)
		require.NotNil(t, one, i)
		n.record(one, dead, true)
		if i == 0 {
			first = one
		}
	}
	require.Equal(t, "given:1", n.all[0].address)
	require.Len(t, n.all, nodesMax)

	// A round that goes from node to node meanwhile leaves out what was forgotten, and ends.
	tried := 0
	err = n.tryInTurn(t.Context(), leaderOrRelay, func(one *node) error {
		// a deep comparison would read what gRPC is changing
		require.True(t, slices.Contains(n.all, one))
		tried++
		for i := range nodesMax {
			_, err := n.nodeAt(fmt.Sprintf("moved again:%d:%d", tried, i))
			require.NoError(t, err)
		}
		return dead
	})
	require.Equal(t, errRoundFailed, err)
	require.LessOrEqual(t, tried, nodesMax)
	n.record(first, dead, true) // which was forgotten
}

// A loop that its caller leaves says nothing of the node that it watched.
func TestALeftWatchLeavesTheLeaderKnown(t *testing.T) {
	n, err := newNodes(Config{Endpoints: []string{"given:1"}, Cluster: "c"})
	require.NoError(t, err)
	defer func() { require.NoError(t, n.close()) }()
	leader := n.all[0]
	n.record(leader, nil, true)
	ctx, cancel := context.WithCancel(t.Context())
	err = n.tryInTurn(ctx, anyNode, func(*node) error {
		cancel()
		return ctx.Err()
	})
	require.Equal(t, errRoundFailed, err)
	require.Same(t, leader, n.leader)
	require.NoError(t, leader.last)
}

// A node that names the leader is tried as a relay if that leader has not answered in the round,
// and not otherwise; one that does not know the leader's address, when all others were tried: one
// of them may lead. What it says then is part of the error; a limit of its own is not final.
func TestARoundAsksForARelay(t *testing.T) {
	says := func(info *zamokpb.ErrorInfo) error {
		s, err := status.New(codes.Unavailable, info.GetMessage()).WithDetails(info)
		require.NoError(t, err)
		return s.Err()
	}
	follower := says(&zamokpb.ErrorInfo{Code: zamokpb.Code_CODE_NOT_LEADER, Message: "b leads",
		Leader: "b", LeaderAddress: "b:1"})
	limit := says(&zamokpb.ErrorInfo{Code: zamokpb.Code_CODE_LIMIT_EXCEEDED, Message: "full",
		Field: "relayed-bytes-per-identity", RetryAfter: 1})
	busy := says(&zamokpb.ErrorInfo{Code: zamokpb.Code_CODE_OVERLOADED, Message: "busy"})
	nameless := says(&zamokpb.ErrorInfo{Code: zamokpb.Code_CODE_NOT_LEADER, Message: "b leads",
		Leader: "b"})
	for name, test := range map[string]struct {
		follower, leader, relay error
		tries                   int
		says                    string
	}{
		"a silent leader": {follower, errNoAnswer, errNoAnswer, 3,
			"a:1: b leads; as a relay: no answer; b:1: no answer"},
		"it relays":               {follower, errNoAnswer, nil, 3, ""},
		"its own limit":           {follower, errNoAnswer, limit, 3, "as a relay: full"},
		"a leader that answers":   {follower, busy, nil, 2, "b:1: busy"},
		"an unknown address":      {nameless, errNoAnswer, nil, 3, ""},
		"nobody names the leader": {errNoAnswer, errNoAnswer, nil, 2, "a:1: no answer"},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := newNodes(Config{Endpoints: []string{"a:1", "b:1"}, Cluster: "c"})
			require.NoError(t, err)
			defer func() { require.NoError(t, n.close()) }()
			var tried []*node
			err = n.tryInTurn(t.Context(), leaderOrRelay, func(one *node) error {
				tried = append(tried, one)
				return map[*node]error{n.all[0]: test.follower, n.all[1]: test.leader,
					n.all[0].relay: test.relay}[one]
			})
			require.Len(t, tried, test.tries)
			require.Equal(t, test.tries == 3, slices.Contains(tried, n.all[0].relay))
			if test.says == "" {
				require.NoError(t, err)
				require.Same(t, n.all[0].relay, n.leader, "it is tried first the next time")
				return
			}
			require.Equal(t, errRoundFailed, err)
			require.ErrorContains(t, n.unavailable(NotDone, nil), test.says)
		})
	}
}

// Connections are closed under the mutex of nodes, which can take seconds. A loss is reported
// meanwhile.
func TestLostWaitsForNoConnection(t *testing.T) {
	b := newBare(t)
	all := b.requests(1)
	b.outgoing()
	b.push(state(1, granted, 0))
	l := b.hand(all[0])
	b.c.nodes.mu.Lock()
	defer b.c.nodes.mu.Unlock()
	ticked := make(chan struct{})
	go func() {
		defer close(ticked)
		b.renewalTick() // the node of a bare session is a relay
	}()
	select {
	case <-ticked:
	case <-time.After(30 * time.Second):
		require.Fail(t, "it waits")
	}
	b.pass(10 * clock.Second)
	require.ErrorIs(t, l.Err(), ErrLost)
}
