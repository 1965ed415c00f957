package raftnode

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/raftnode/peer"
)

// joinsUntilVoter has a node request to join until it has a vote, or is refused for good.
func (b *bubble) joinsUntilVoter(n *bubbleNode) (err error) {
	for began := time.Now(); !n.Voter() &&
		time.Since(began) < time.Minute; time.Sleep(time.Second) {
		if err = n.RequestJoin(b.Context()); errors.Is(err, ErrRefused) {
			break
		}
	}
	return err
}

// A node joins with nothing but its certificate if the operator named it, calls any member, and
// finds the leader by that.
func TestAnAllowedNodeJoinsByItself(t *testing.T) {
	a := newAuthority(t)
	inBubbleTuned(t, func(c *Config) {
		c.Peers.TLS, c.Peers.AllowedNames = a.names(t, c.ID), []string{"n[1-4]"}
	}, func(b *bubble) {
		leader := b.leader(b.nodes...)
		follower, err := peer.ParseList(b.others(leader)[0].self.ID + "=" +
			b.others(leader)[0].self.Address)
		require.NoError(b, err)
		n4 := b.machine("n4", "h4:1")
		b.waits(n4, follower)
		require.NoError(b, b.joinsUntilVoter(n4))
		require.True(b, n4.Voter())
		b.nodes = append(b.nodes, n4)

		outsider := b.machine("x5", "h5:1")
		usual := b.tune
		b.tune = func(c *Config) { usual(c); c.Peers.List, c.Join = peer.List{}, b.list }
		err = b.open(outsider)
		b.tune = usual
		require.ErrorContains(b, err, "nothing was started")
		require.ErrorContains(b, err, "--peer-allowed-names and its name")
	})
}

// A certificate of the peers' authority alone adds no node: it waits for an operator, and learns
// what that has to do.
func TestANodeThatNobodyVouchesForWaits(t *testing.T) {
	secured(t, func(b *bubble, _ authority) {
		leader := b.leader(b.nodes...)
		n4 := b.machine("n4", "h4:1")
		b.waits(n4, b.list)
		for range 3 {
			err := n4.RequestJoin(b.Context())
			require.ErrorContains(b, err, "run `zamok join` for the caller")
			require.NotErrorIs(b, err, ErrRefused, "it waits")
		}
		require.Len(b, leader.Servers(), 3)
		require.NoError(b, leader.Join(b.Context(), n4.self))
		require.NoError(b, b.joinsUntilVoter(n4))
		require.True(b, n4.Voter())
		b.nodes = append(b.nodes, n4)
	})
}

// A node joins for itself: not for the node at another address, and not for another data directory
// of its name.
func TestANodeAsksToJoinForItselfOnly(t *testing.T) {
	a := newAuthority(t)
	inBubbleTuned(t, func(c *Config) {
		c.Peers.TLS, c.Peers.AllowedNames = a.names(t, c.ID), []string{"n4", "n5"}
	}, func(b *bubble) {
		leader := b.leader(b.nodes...)
		n4, second, n5 := b.machine("n4", "h4:1"), b.machine("n4", "h9:1"), b.machine("n5", "h5:1")
		for _, n := range []*bubbleNode{n4, second, n5} {
			b.waits(n, b.list)
		}
		for _, c := range []struct {
			by         *bubbleNode
			at, reason string
		}{
			{n4, b.nodes[0].self.Address, "is the address of n1"},
			{n4, "h4", "has no host and port"},
			{second, n4.self.Address, "at h4:1 is another machine of the name n4"},
			// the leader's TLS handshake fails there, later
			{n4, n5.self.Address, "n4 is being added"},
		} {
			assert.Contains(b, b.requestJoinAt(c.by, leader, c.at), c.reason)
		}
		time.Sleep(addTimeout)
		assert.Len(b, leader.Servers(), 3)

		require.NoError(b, b.joinsUntilVoter(n4))
		require.ErrorIs(b, b.joinsUntilVoter(second), ErrRefused, "two machines have one name")
		assert.Equal(b, "h4:1", string(leader.runs.latest.Load().servers().named("n4").Address))
		require.NoError(b, second.Kill())
		b.nodes = append(b.nodes, n4, n5)
	})
}

// requestJoinAt has a node request of the leader to be added at an address.
func (b *bubble) requestJoinAt(n, leader *bubbleNode, at string) string {
	body, err := json.Marshal(nodeRequest{Join: at})
	require.NoError(b, err)
	reply, err := n.network.Call(b.Context(),
		peer.Node{ID: leader.Node.self.String(), Address: leader.self.Address}, body)
	require.NoError(b, err)
	return string(reply)
}

// A node that requests again and again to be added does not fill the leader's log.
func TestManyRequestsToJoinAreLoggedOnce(t *testing.T) {
	a := newAuthority(t)
	inBubbleTuned(t, func(c *Config) {
		c.Peers.TLS, c.Peers.AllowedNames = a.names(t, c.ID), []string{"n4"}
	}, func(b *bubble) {
		leader, n4 := b.quietLeader(), b.machine("n4", "h4:1") // a member has to know its cluster
		b.waits(n4, b.list)
		leader.diary.new()
		for range 100 {
			require.Contains(b, b.requestJoinAt(n4, leader, "h9:1"), "n4 does not answer at h9:1")
		}
		assert.Equal(b, 1, strings.Count(strings.Join(leader.diary.new(), ""), "requests to join"))
		member := b.others(leader)[0]
		for range 100 {
			require.Empty(b, b.requestJoinAt(member, leader, member.self.Address), "it has a vote")
		}
		assert.Empty(b, leader.diary.new())
		require.NoError(b, n4.Kill())
	})
}

// What a leader does for a node that requests to be added is over when the leader is closed.
func TestCloseWaitsForARequestToJoin(t *testing.T) {
	a := newAuthority(t)
	var hung, released chan struct{}
	inBubbleTuned(t, func(c *Config) {
		c.Peers.TLS, c.Peers.AllowedNames = a.names(t, c.ID), []string{"n4"}
		dial := c.Peers.Dial
		c.Peers.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			if address == "h9:1" { // as a resolver may, it does not end with ctx
				offer(hung, struct{}{})
				<-released
			}
			return dial(ctx, address)
		}
	}, func(b *bubble) {
		hung, released = make(chan struct{}, 1), make(chan struct{})
		leader, n4 := b.leader(b.nodes...), b.machine("n4", "h4:1")
		b.waits(n4, b.list)
		require.Contains(b, b.requestJoinAt(n4, leader, "h9:1"), "n4 is being added")
		<-hung
		closed := make(chan error, 1)
		go func() { closed <- leader.Kill() }()
		time.Sleep(time.Minute)
		assert.Empty(b, closed)
		close(released)
		require.NoError(b, <-closed)
		require.NoError(b, n4.Kill())
	})
}

// A member learns its cluster when it applies its first entry. To add it again changes nothing.
func TestAMemberThatHasAppliedNothingIsAddedAgain(t *testing.T) {
	inBubble(t, func(b *bubble) {
		late := b.nodes[2]
		late.disk.hang()
		leader := b.leader(b.nodes[:2]...)
		require.Zero(b, late.network.Mine().Cluster)
		require.NoError(b, leader.Join(b.Context(), late.self))
		require.Len(b, leader.Servers(), 3)
	})
}
