package client

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A request that was sent before the node vanished may have taken effect, even if all endpoints
// refuse connections later.
func TestARefusalAfterSomethingWasSentIsNotFinal(t *testing.T) {
	refused := status.Error(codes.Unavailable,
		`connection error: desc = "transport: Error while dialing: connect: connection refused"`)
	for _, sent := range []bool{false, true} {
		n, err := newNodes(Config{Endpoints: []string{"127.0.0.1:5750"},
			Cluster: strings.Repeat("ab", 16), RequestTimeout: time.Second,
			Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		if sent {
			n.record(n.all[0], status.Error(codes.Unavailable, "error reading from server: EOF"),
				true)
		}
		n.record(n.all[0], refused, true)
		if sent {
			require.Equal(t, errRoundFailed, n.roundError())
		} else {
			require.ErrorIs(t, n.roundError(), ErrUnavailable)
		}
		require.NoError(t, n.close())
	}
}

// The end of a session ends its stream, and says nothing of the node: the error of a later outage
// does not wrap it.
func TestAnEndedSessionIsNotInTheErrorOfAnOutage(t *testing.T) {
	n, err := newNodes(Config{Endpoints: []string{"127.0.0.1:5750"},
		Cluster: strings.Repeat("ab", 16), RequestTimeout: time.Second,
		Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	b := newBare(t)
	b.c.nodes, b.st.node = n, n.all[0]
	b.end(&Error{Kind: ErrSessionExpired})
	b.streamEnded(b.st, context.Cause(b.st.ctx))
	require.NotErrorIs(t, n.unavailable(NotDone, nil), ErrSessionExpired)
	n.record(n.all[0], permanentError{errTakenOver}, true)
	require.NotErrorIs(t, n.unavailable(NotDone, nil), ErrSessionExpired)
	require.NoError(t, n.close())
}
