package api

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	"zamok/api/audit"
	"zamok/api/gate/identity"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/session"
)

// grantLines are the lines for grants and ends of holds, by what happened and the token: each is
// there once.
func (a *auditLines) grantLines(t *testing.T) map[string]audit.Event {
	lines := make(map[string]audit.Event)
	for _, e := range a.take(t) {
		if e.On["session"] == "" || e.On["token"] == "" {
			continue // an operator's
		}
		key := e.Call + " " + e.On["token"]
		require.NotContains(t, lines, key)
		lines[key] = e
	}
	return lines
}

// TestGrantsAreAudited: one line for each grant and for the end of each hold, from the node that
// leads, also after a change of leader.
func TestGrantsAreAudited(t *testing.T) {
	t.Parallel()
	lines := &auditLines{}
	tokens, known := tokensFor(t, "alice")
	c := startCluster(t, 2, func(cfg *NodeConfig) {
		cfg.Audit, cfg.AuditGrants = lines, true
		cfg.Identity.Verifier = func() identity.Verifier { return identity.Verifier{Tokens: known} }
	})
	ctx := metadata.AppendToOutgoingContext(relaying(soon(t)), "authorization",
		"Bearer "+tokens["alice"])
	want := make(map[string]audit.Event)
	expect := func(call, name string, s *sessionOf, state *zamokpb.TicketState, more ...string) {
		on := map[string]string{
			"session": fmt.Sprint(s.id), "ticket": fmt.Sprint(state.Ticket),
			"token": fmt.Sprint(state.Token), "lock 1": name,
		}
		for i := 0; i < len(more); i += 2 {
			on[more[i]] = more[i+1]
		}
		want[call+" "+on["token"]] = audit.Event{Node: c.leader().cfg.ID, Who: "alice", Call: call,
			On: on, Outcome: "done"}
	}
	epoch := func() {
		s, other := openSession(t, ctx, call(t, c.nodes[0])),
			openSession(t, ctx, call(t, c.nodes[1]))
		held := s.hold("x")
		expect("granted", "x", s, held)
		waits := other.acquire(ctx, other.next("x", fsm.Forever))
		s.waiters("x", 1)
		given := other.acquire(ctx, other.next("x", 0)) // is not granted, so it is no line
		require.Error(t, (<-given).err)
		s.drop(held.Ticket)
		expect("released", "x", s, held)
		next := <-waits
		require.NoError(t, next.err)
		expect("granted", "x", other, next.answer.State)
		_, err := s.admin.ForceRelease(ctx,
			&zamokpb.ForceReleaseRequest{Name: "x", Token: next.answer.State.Token,
				Reason: "a test"})
		require.NoError(t, err)
		expect("lost", "x", other, next.answer.State, "reason", "FORCE_RELEASED", "text", "a test")
		last := s.hold("y")
		expect("granted", "y", s, last)
		_, err = s.admin.ExpireSession(ctx, &zamokpb.ExpireSessionRequest{Session: s.id})
		require.NoError(t, err)
		// by whom is known, although the session is not any more
		expect("lost", "y", s, last, "reason", "EXPIRED_BY_OPERATOR")
	}
	first := c.leader()
	epoch()
	for c.leader() == first { // on a busy machine it may be elected again
		_ = first.Raft().Transfer(soon(t), "")
	}
	epoch()
	for _, n := range c.nodes {
		require.NoError(t, n.Kill())
	}
	assert.Equal(t, want, lines.grantLines(t))
}

// TestGrantsAreAuditedOnce: a node that was killed applies its log again, and writes nothing of
// that.
func TestGrantsAreAuditedOnce(t *testing.T) {
	t.Parallel()
	lines, dir, again := &auditLines{}, t.TempDir(), nodeConfig("n1", "")
	c := startCluster(t, 1, func(cfg *NodeConfig) {
		cfg.Store.Dir, cfg.Audit, cfg.AuditGrants = dir, lines, true
		again.Peers.List = cfg.Peers.List
	})
	s := openSession(t, soon(t), call(t, c.leader()))
	held := s.hold("x")
	s.drop(held.Ticket)
	held = s.hold("y")
	again.Store.Dir, again.Audit, again.AuditGrants, again.ListenPeers = dir, lines, true,
		c.nodes[0].Peer()
	require.NoError(t, c.nodes[0].Kill())
	var err error
	c.nodes[0], err = StartNode(soon(t), again)
	require.NoError(t, err)
	s.caller = call(t, c.leader())
	s.drop(held.Ticket)
	s.hold("x")
	require.NoError(t, c.nodes[0].Kill())
	assert.Len(t, lines.grantLines(t), 5)
}

// TestWhatExpiresWithTheFirstEntryOfAnEpochIsAudited: an entry expires a limited number of tickets.
// If the leader changes then, the others expire in the entry that starts the next epoch, which a
// node applies before it leads.
func TestWhatExpiresWithTheFirstEntryOfAnEpochIsAudited(t *testing.T) {
	t.Parallel()
	const sessions = fsm.ExpirationsMax
	m, lines := fsm.New(), &auditLines{}
	g := newGrantLog(audit.New(
		audit.Config{Node: "n2", Out: lines, Failed: func(err error) { require.NoError(t, err) }}))
	apply := func(term uint64, e fsm.Entry) fsm.Applied {
		e.Version = 1
		a, err := m.Apply(term, e.Append(nil))
		require.NoError(t, err)
		require.Equal(t, fsm.OK, a.Refused)
		g.Applied(m, a)
		return a
	}
	start := func(node string) *fsm.LeaderStart {
		return &fsm.LeaderStart{Node: node, Nonce: 1, Cluster: fsm.ClusterID{1}}
	}
	epoch := apply(1, fsm.Entry{Commands: []fsm.Command{start("n1")}}).Results[0].Index
	for i := range uint64(sessions) {
		open := &fsm.OpenSession{Secret: session.Hash{byte(i), byte(i >> 8), 1},
			Settings: session.Settings{TTL: clock.Minute}}
		id := apply(1, fsm.Entry{Commands: []fsm.Command{open}}).Results[0].Session
		apply(1, fsm.Entry{Commands: []fsm.Command{&fsm.Acquire{
			Session: id, Ticket: 1, Items: []fsm.Item{{Name: fmt.Sprint(i), Mode: fsm.Exclusive}},
		}}})
	}
	lost := func(a fsm.Applied) int { return len(grants(a.Events)) }
	some := lost(apply(1,
		fsm.Entry{Reading: clock.Reading{Epoch: epoch, Now: m.Time().Add(2 * clock.Minute)}}))
	require.Positive(t, some, "an entry expires some")
	left := lost(apply(2, fsm.Entry{Commands: []fsm.Command{start("n2")}}))
	require.Positive(t, left, "the next leader's first entry expires others")
	g.SetLeading(true)
	apply(2, fsm.Entry{})
	g.SetLeading(false)
	apply(3, fsm.Entry{Commands: []fsm.Command{start("n1")}})
	g.stop()
	assert.Len(t, lines.grantLines(t), sessions-some)
}
