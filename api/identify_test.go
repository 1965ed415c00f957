package api

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"zamok/api/access"
	"zamok/api/access/identity"
	"zamok/api/access/rules"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/session"
)

// TestAHeldCallEndsWithItsRights: an acquisition that waits, and a watch without an event, end within authenticateEvery when
// the token is taken out of the file, or the rules no longer allow the request. What still is allowed goes on.
func TestAHeldCallEndsWithItsRights(t *testing.T) {
	allowed := theseRules(t, `rules: [{identities: [alice], names: [x], may: [lock, watch]}]`)()
	other := theseRules(t, `rules: [{identities: [alice], names: ["y*"], may: [lock, watch]}]`)()
	tokens, known := tokensFor(t, "alice")
	acquire := func(s *Server, ctx context.Context) error {
		request := &zamokpb.AcquireRequest{Session: 1, Secret: make([]byte, 16), Acquire: exclusive(1, "x", -1).GetAcquire()}
		_, err := s.unary(ctx, request, &grpc.UnaryServerInfo{FullMethod: zamokpb.Zamok_Acquire_FullMethodName},
			func(ctx context.Context, _ any) (any, error) {
				<-ctx.Done()
				return nil, context.Cause(ctx)
			})
		return err
	}
	watch := func(s *Server, ctx context.Context) error {
		ctx, err := s.identify(ctx, zamokpb.Zamok_Watch_FullMethodName)
		require.NoError(t, err)
		return s.Watch(&zamokpb.WatchRequest{Prefix: "x"}, &grpc.GenericServerStream[zamokpb.WatchRequest, zamokpb.WatchFrame]{
			ServerStream: emptyStream{ctx: ctx},
		})
	}
	for name, call := range map[string]func(*Server, context.Context) error{"acquire": acquire, "watch": watch} {
		for _, test := range []struct {
			name   string
			change func(v *atomic.Pointer[identity.Verifier], set *atomic.Pointer[rules.Set])
			code   zamokpb.Code
			says   string
		}{
			{"token", func(v *atomic.Pointer[identity.Verifier], _ *atomic.Pointer[rules.Set]) {
				v.Store(&identity.Verifier{})
			},
				zamokpb.Code_CODE_UNAUTHENTICATED, "the token is not known here"},
			{"rules", func(_ *atomic.Pointer[identity.Verifier], set *atomic.Pointer[rules.Set]) { set.Store(other) },
				zamokpb.Code_CODE_DENIED, "the call ends, because the rules have changed: alice may not "},
			{"nothing", func(*atomic.Pointer[identity.Verifier], *atomic.Pointer[rules.Set]) {}, zamokpb.Code_CODE_UNKNOWN, "canceled"},
		} {
			t.Run(name+" "+test.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					v, set := new(atomic.Pointer[identity.Verifier]), new(atomic.Pointer[rules.Set])
					v.Store(&identity.Verifier{Tokens: known})
					set.Store(allowed)
					s := newServer(&NodeConfig{Audit: new(bytes.Buffer), Identity: access.Identifier{
						Verifier: func() identity.Verifier { return *v.Load() },
					}})
					s.guard = access.Guard{Rules: set.Load, Denied: s.denied}
					ctx, cancel := context.WithCancel(peer.NewContext(
						metadata.NewIncomingContext(t.Context(), metadata.Pairs("authorization", "Bearer "+tokens["alice"])),
						&peer.Peer{Addr: &net.TCPAddr{}}))
					ended := make(chan error, 1)
					go func() { ended <- call(s, ctx) }()
					time.Sleep(time.Hour)
					synctest.Wait()
					require.Empty(t, ended, "it is allowed")
					test.change(v, set)
					time.Sleep(authenticateEvery)
					synctest.Wait()
					cancel()
					e := wire.Explain(<-ended)
					assert.Equal(t, test.code, e.Code())
					assert.Equal(t, zamokpb.Outcome_OUTCOME_UNKNOWN, e.Info.Outcome)
					assert.ErrorContains(t, e, test.says)
				})
			})
		}
	}
}

// TestAWaitIsWithdrawnWithItsToken: on the leader, through a node that relays, and over HTTP, an acquisition that waits ends with
// its token, and leaves the queue.
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
		cfg.Rules = theseRules(t, `rules: [{groups: [authenticated], names: ["*"], may: [lock, read, watch]}]`)
		cfg.Identity.Verifier = func() identity.Verifier { return identity.Verifier{Tokens: *known.Load()} }
	})
	as := func(who string) context.Context {
		return metadata.AppendToOutgoingContext(relaying(soon(t)), "authorization", "Bearer "+tokens[who])
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
				Secret: bytes.Repeat([]byte{byte(n.cfg.ID[1])}, 16), Settings: settings(clock.Minute), Acquire: exclusive(1, "x", int64(clock.Minute)).GetAcquire(),
			})
			codes <- infoOf(t, err).Code
		}()
		go func() {
			answer := send(soon(t), t, n, "POST", "/v1/acquire", `{"name":"x","wait":"1m"}`, "Authorization", shown(as("alice")))
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

// TestAWaitOutlivesTheNodeThatRelaysIt: the removal of that node is not its caller's doing, who asks another node for the same
// ticket, and has kept its place in the queue.
func TestAWaitOutlivesTheNodeThatRelaysIt(t *testing.T) {
	takesTime(t)
	t.Parallel()
	c := startCluster(t, 3, func(cfg *NodeConfig) {
		cfg.Fatal = func(err error) { assert.ErrorIs(t, err, raftnode.ErrRemoved) } // if it hears of it at all
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

	request.RespondWithin = 1
	answer, err := to.Acquire(relaying(soon(t)), request)
	require.NoError(t, err)
	assert.Equal(t, zamokpb.State_STATE_WAITING, answer.State.State)
}
