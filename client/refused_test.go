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

// What was sent before the node vanished may have been done: that all refuse afterwards does not say it was not.
func TestARefusalAfterSomethingWasSentIsNotFinal(t *testing.T) {
	const address = "127.0.0.1:5750"
	refused := status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: connect: connection refused"`)
	for _, sent := range []bool{false, true} {
		n, err := newNodes(Config{Endpoints: []string{address}, Cluster: strings.Repeat("ab", 16), RequestTimeout: time.Second, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		if sent {
			n.note(address, status.Error(codes.Unavailable, "error reading from server: EOF"))
		}
		n.note(address, refused)
		if sent {
			require.NoError(t, n.allRefuse())
		} else {
			require.ErrorIs(t, n.allRefuse(), ErrUnavailable)
		}
		require.NoError(t, n.close())
	}
}

// The end of a session ends its stream, and says nothing of the node: the error of a later outage does not wrap it.
func TestAnEndedSessionIsNotInTheErrorOfAnOutage(t *testing.T) {
	const address = "127.0.0.1:5750"
	n, err := newNodes(Config{Endpoints: []string{address}, Cluster: strings.Repeat("ab", 16), RequestTimeout: time.Second, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	b := newBare(t)
	b.c.nodes, b.st.conn = n, n.conn(address)
	b.end(&Error{Kind: ErrSessionExpired})
	b.streamEnded(b.st, context.Cause(b.st.ctx))
	require.NotErrorIs(t, n.unavailable(NotDone, nil), ErrSessionExpired)
	n.note(address, finalError{errTakenOver()})
	require.NotErrorIs(t, n.unavailable(NotDone, nil), ErrSessionExpired)
	require.NoError(t, n.close())
}
