package api

import (
	"bytes"
	"context"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	"zamok/api/gate/identity"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/session"
)

// TestAWaitIsWithdrawnWithItsToken: on the leader, through a node that relays, and over HTTP, an
// acquisition that waits ends with its token, and leaves the queue.
func TestAWaitIsWithdrawnWithItsToken(t *testing.T) {
	takesTime(t)
	t.Parallel()
	tokens, all := tokensFor(t, "alice", "bob")
	_, without := tokensFor(t)
	for id, token := range all {
		if token.Identity == "bob" {
			without[id] = token
		}
	}
	var known atomic.Pointer[identity.Tokens]
	known.Store(&all)
	c := startCluster(t, 2, func(cfg *NodeConfig) {
		serveHTTP(cfg)
		cfg.Audit = &auditLines{}
		cfg.Rules = theseRules(t,
			`rules: [{groups: [authenticated], names: ["*"], may: [lock, read, watch]}]`)
		cfg.Identity.Verifier = func() identity.Verifier {
			return identity.Verifier{Tokens: *known.Load()}
		}
	})
	as := func(who string) context.Context {
		return metadata.AppendToOutgoingContext(relaying(soon(t)), "authorization",
			"Bearer "+tokens[who])
	}
	leader := c.leader()
	holder := openSession(t, as("bob"), call(t, leader))
	holder.hold("x")
	codes, waits := make(chan zamokpb.Code), 0
	for _, n := range c.nodes {
		s := openSession(t, as("alice"), call(t, n))
		go func() {
			_, err := s.Acquire(s.ctx, s.next("x", clock.Minute))
			codes <- infoOf(t, err).Code
		}()
		go func() { // it has a session of its own, which this node renews
			_, err := call(t, n).Acquire(as("alice"), &zamokpb.AcquireRequest{
				Secret:   bytes.Repeat([]byte{byte(n.cfg.ID[1])}, 16),
				Settings: settings(clock.Minute),
				Acquire:  exclusive(1, "x", int64(clock.Minute)).GetAcquire(),
			})
			codes <- infoOf(t, err).Code
		}()
		go func() {
			answer := send(soon(t), t, n, "POST", "/v1/acquire", `{"name":"x","wait":"1m"}`,
				"Authorization", shown(as("alice")))
			assert.Equal(t, http.StatusUnauthorized, answer.code, answer.text)
			codes <- zamokpb.Code_CODE_UNAUTHENTICATED
		}()
		waits += 3
	}
	waiters := func() (found int) {
		leader.Raft().View(func(m *fsm.Machine) {
			for range m.Waiters("x") {
				found++
			}
		})
		return found
	}
	require.Eventually(t, func() bool { return waiters() == waits }, patience, patience/1000)
	known.Store(&without)
	for range waits {
		assert.Equal(t, zamokpb.Code_CODE_UNAUTHENTICATED, <-codes)
	}
	require.Eventually(t, func() bool { return waiters() == 0 }, patience, patience/1000)
	var held bool
	leader.Raft().View(func(m *fsm.Machine) { _, held = m.Session(session.ID(holder.id)) })
	assert.True(t, held, "of bob nothing was withdrawn")
}

// TestAWaitOutlivesTheNodeThatRelaysIt: the removal of that node is not its caller's doing, who
// requests at another node the same ticket, and has kept its place in the queue.
func TestAWaitOutlivesTheNodeThatRelaysIt(t *testing.T) {
	takesTime(t)
	t.Parallel()
	c := startCluster(t, 3, func(cfg *NodeConfig) {
		// if it hears of it at all
		cfg.Fatal = func(err error) { assert.ErrorIs(t, err, raftnode.ErrRemoved) }
	})
	leader, through := c.leader(), c.follower()
	to := call(t, leader)
	openSession(t, relaying(soon(t)), to).hold("x")
	s := openSession(t, relaying(soon(t)), call(t, through))
	request := s.next("x", fsm.Forever)
	waiting := s.acquire(s.ctx, request)
	s.waiters("x", 1)
	_, err := to.admin.Remove(relaying(soon(t)), &zamokpb.RemoveRequest{Id: through.cfg.ID})
	require.NoError(t, err)
	info := infoOf(t, (<-waiting).err)
	assert.Equal(t, zamokpb.Code_CODE_NOT_LEADER, info.Code, info.Message)
	assert.Equal(t, zamokpb.Outcome_OUTCOME_UNKNOWN, info.Outcome)
	assert.Contains(t, info.Message, "the ticket waits on")

	request.Poll = 1
	answer, err := to.Acquire(relaying(soon(t)), request)
	require.NoError(t, err)
	assert.Equal(t, zamokpb.State_STATE_WAITING, answer.State.State)
}
