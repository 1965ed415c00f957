package api

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	"zamok/api/gate"
	"zamok/api/gate/limits"
	"zamok/api/gate/rules"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	raftpeer "zamok/raftnode/peer"
)

// asFirst is the context of a call whose sender says that it is the first transmission.
func asFirst(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, zamokpb.FirstKey, "1")
}

// requests are calls that acquire or open a session, by name, each of which has another secret or
// ticket. A stream opens one.
func requests(t *testing.T, ctx context.Context, to caller,
	s *sessionOf) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"opening": func(ctx context.Context) error {
			_, err := to.OpenSession(ctx,
				&zamokpb.OpenSessionRequest{Secret: newSecret(), Settings: settings(clock.Minute)})
			return err
		},
		"acquisition with a session of its own": func(ctx context.Context) error {
			_, err := to.Acquire(ctx, once("its own", clock.Minute, 0))
			return err
		},
		"acquisition": func(ctx context.Context) error {
			_, err := to.Acquire(ctx, s.next("x", 0))
			return err
		},
		"stream": func(ctx context.Context) error {
			stream, err := to.Session(ctx)
			require.NoError(t, err)
			_ = stream.Send(&zamokpb.ClientFrame{
				Messages: []*zamokpb.ClientMessage{{Message: &zamokpb.ClientMessage_Open{
					Open: &zamokpb.OpenStream{Secret: newSecret(),
						Settings: settings(clock.Minute)},
				}}}})
			_, err = stream.Recv()
			return err
		},
	}
}

// requireDoubt requires that each request is refused with a code: as not done if it is the first
// transmission. Otherwise the outcome is unknown, since an earlier transmission may be done.
func requireDoubt(t *testing.T, ctx context.Context,
	requests map[string]func(context.Context) error, code zamokpb.Code) {
	t.Helper()
	for name, request := range requests {
		for want, ctx := range map[zamokpb.Outcome]context.Context{
			zamokpb.Outcome_OUTCOME_UNKNOWN: ctx, zamokpb.Outcome_OUTCOME_NOT_DONE: asFirst(ctx),
		} {
			info := infoOf(t, request(ctx))
			assert.Equal(t, code, info.Code, "%s: %s", name, info.Message)
			assert.Equal(t, want, info.Outcome, "%s: %s", name, info.Message)
		}
	}
}

// The refusal of a retransmission by a node that does not lead is in doubt: the node may be behind.
// So is that of a node without a leader, with or without a relay: it can't know what the others
// have granted.
func TestOnlyTheLogSaysNotDoneOfARetransmission(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	ctx, follower := soon(t), c.follower()
	to := call(t, follower)
	s := openSession(t, ctx, call(t, c.leader()))
	require.Eventually(t, func() (known bool) {
		follower.Raft().View(func(m *fsm.Machine) {
			_, known = m.SessionBySecret(wire.Hash(s.secret))
		})
		return known
	}, patience, clock.Millisecond.Duration())
	requireDoubt(t, ctx, requests(t, ctx, to, s), zamokpb.Code_CODE_NOT_LEADER)

	for _, n := range c.nodes {
		if n != follower {
			require.NoError(t, n.Kill())
		}
	}
	require.Eventually(t, func() bool {
		return follower.Raft().LeaderServer() == raftpeer.Server{}
	}, patience, clock.Millisecond.Duration())
	requireDoubt(t, ctx, requests(t, ctx, to, s), zamokpb.Code_CODE_NOT_LEADER)
	requireDoubt(t, relaying(ctx), requests(t, ctx, to, s), zamokpb.Code_CODE_NOT_LEADER)
}

// The refusal of a retransmission by a leader before the log is in doubt, whatever its reason is.
// What the state machine refuses is not done, retransmissions included.
func TestALeaderLeavesRetransmissionsInDoubtBeforeTheLog(t *testing.T) {
	t.Parallel()
	set, err := limits.Parse([]string{"requests-per-identity=10/s"})
	require.NoError(t, err)
	n := startCluster(t, 1, func(cfg *NodeConfig) { cfg.Limits = set }).leader()
	ctx, to := soon(t), call(t, n)
	s := openSession(t, ctx, to)
	held := s.next("x", 0)
	_, err = s.Acquire(ctx, held)
	require.NoError(t, err)
	_, err = to.Acquire(ctx, once("x", clock.Minute, 0))
	info := infoOf(t, err)
	assert.Equal(t, zamokpb.Code_CODE_NOT_ACQUIRED, info.Code)
	assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, info.Outcome)

	flood := func() {
		for n.server.limits.Take(limits.Requests,
			gate.Caller{Address: "127.0.0.1:1"}.Principal()) == nil {
		}
	}
	all := requests(t, ctx, to, s)
	for name, request := range all {
		all[name] = func(ctx context.Context) (err error) {
			// the rate had room again before it came
			for err == nil || infoOf(t, err).Code != zamokpb.Code_CODE_OVERLOADED {
				flood()
				err = request(ctx)
			}
			return err
		}
	}
	requireDoubt(t, ctx, all, zamokpb.Code_CODE_OVERLOADED)
	flood()
	_, err = s.Acquire(ctx, held)
	require.NoError(t, err, "a rate refuses no retransmission of what the state machine has")
}

// A retransmission that the access rules deny is in doubt: they may have changed.
func TestADeniedRetransmissionIsInDoubt(t *testing.T) {
	t.Parallel()
	var denied atomic.Bool
	nothing, err := rules.Parse([]byte("rules: []"))
	require.NoError(t, err)
	to := call(t, startCluster(t, 1, func(cfg *NodeConfig) {
		cfg.Rules = func() *rules.Set {
			if denied.Load() {
				return nothing
			}
			return nil
		}
	}).leader())
	ctx := soon(t)
	s := openSession(t, ctx, to)
	denied.Store(true)
	requireDoubt(t, ctx, requests(t, ctx, to, s), zamokpb.Code_CODE_DENIED)
}

// A stream that has opened its session, and is not attached, has done something, although no
// earlier one has.
func TestAnOpenedSessionIsInDoubt(t *testing.T) {
	t.Parallel()
	n := startAlone(t)
	n.server.hub.SetLeading(false)
	ctx, to := soon(t), call(t, n)
	info := infoOf(t, requests(t, ctx, to, nil)["stream"](asFirst(ctx)))
	assert.Equal(t, zamokpb.Code_CODE_NOT_LEADER, info.Code)
	assert.Equal(t, zamokpb.Outcome_OUTCOME_UNKNOWN, info.Outcome)
	assert.Equal(t, 1, sessionsOf(n))
}
