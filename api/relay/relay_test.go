package relay

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"zamok/api/conns"
	"zamok/api/gate"
	"zamok/api/gate/limits"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/raftnode/peer"
)

// TestRelayedCallsAreBounded: those that may be held open leave room for the others, and the first
// connection with room is used.
func TestRelayedCallsAreBounded(t *testing.T) {
	all := limits.New(limits.Config{Logger: slog.New(slog.DiscardHandler), Clock: clock.System(),
		LimitReached: func(string) {}})
	defer all.Stop()
	r := New(Config{Limits: all, Cluster: func() string { return "" },
		Stopping: make(chan struct{})})
	defer r.Close()
	open := func(to peer.Server, held bool) *conn {
		conn, err := r.connTo(t.Context(), to, held)
		require.NoError(t, err)
		return conn
	}
	leader := peer.Server{Name: "n2", Incarnation: peer.Incarnation{1}} // no call is made
	first := open(leader, true)
	for range (connsMax-1)*conns.StreamsPerConn - 1 {
		open(leader, true)
	}
	var e *wire.Error
	_, err := r.connTo(t.Context(), leader, true)
	require.ErrorAs(t, err, &e)
	require.Equal(t, "relayed-calls", e.Info.Field)
	require.Equal(t, zamokpb.Code_CODE_OVERLOADED, e.Info.Code)
	require.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, e.Info.Outcome)
	for range 2 * conns.StreamsPerConn {
		other := open(leader, false) // the last connection is made for the first of them
		require.Same(t, r.conns[leader][connsMax-1], other)
	}
	_, err = r.connTo(t.Context(), leader, true)
	require.Error(t, err)
	require.Len(t, r.conns[leader], connsMax)
	r.endCall(first)
	require.Same(t, first, open(leader, true))
}

// TestWhatALeaderLeavesUnexplained has an outcome nevertheless: what gRPC itself answers for a
// leader says nothing of it.
func TestWhatALeaderLeavesUnexplained(t *testing.T) {
	r := New(Config{Stopping: make(chan struct{})})
	for code, outcome := range map[codes.Code]zamokpb.Outcome{
		codes.Unavailable: zamokpb.Outcome_OUTCOME_UNKNOWN,
		codes.Canceled:    zamokpb.Outcome_OUTCOME_UNKNOWN,
		// a longer message than is relayed
		codes.ResourceExhausted: zamokpb.Outcome_OUTCOME_UNKNOWN,
		codes.Internal:          zamokpb.Outcome_OUTCOME_UNKNOWN, // a stream that was reset
		codes.Unimplemented:     zamokpb.Outcome_OUTCOME_NOT_DONE,
	} {
		info := wire.Explain(r.failed(true, status.Error(code, "its words"))).Info
		assert.Equal(t, outcome, info.Outcome, code)
		assert.Contains(t, info.Message, "its words")
		assert.Regexp(t, "; look, or send it again|; upgrade", info.Message, "it says what to do")
	}
	refused := wire.Errorf(zamokpb.Code_CODE_REFUSED, "not done")
	assert.True(t, proto.Equal(refused.Info, wire.Explain(r.failed(true, refused)).Info),
		"what the leader explains is passed on")
}

// unreachable is a node without a connection to any other.
type unreachable struct{}

func (unreachable) DialRelay(context.Context, peer.Server) (net.Conn, error) {
	return nil, errors.New("nobody is there")
}

// TestWhatCouldNotBeSentIsNotDone: nodes name a leader that is gone until they have another one.
func TestWhatCouldNotBeSentIsNotDone(t *testing.T) {
	all := limits.New(limits.Config{Logger: slog.New(slog.DiscardHandler), Clock: clock.System(),
		LimitReached: func(string) {}})
	defer all.Stop()
	r := New(Config{Limits: all, Cluster: func() string { return "" },
		Stopping: make(chan struct{})})
	r.Start(unreachable{})
	defer r.Close()
	request := &zamokpb.ExpireSessionRequest{Session: 1}
	_, err := r.Call(t.Context(), peer.Server{Name: "n2"},
		gate.OfMethod(zamokpb.Admin_ExpireSession_FullMethodName), request)
	e := wire.Explain(err)
	require.Equal(t, zamokpb.Code_CODE_NOT_LEADER, e.Code())
	require.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, e.Info.Outcome)
	require.ErrorContains(t, err, "there is no connection from here to the leader")
}
