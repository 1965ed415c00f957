package api

import (
	"context"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"zamok/api/zamokpb"
)

// TestTheWrongPort: clients at the peer port and peers at the client port are refused or cut, and
// both ports serve on.
func TestTheWrongPort(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	ctx, node := soon(t), c.leader()

	callNow := func() error { // the peer port's own patience is twice as long
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := callAddress(t, node.Peer()).Now(short, &zamokpb.NowRequest{})
		return err
	}
	err := callNow()
	for status.Code(err) == codes.DeadlineExceeded && ctx.Err() == nil { // the machine was busy
		err = callNow()
	}
	t.Log("a client at the peer port: ", err)
	assert.Equal(t, codes.Unavailable, status.Code(err), "at once, not at its deadline")

	// A node whose list has the client port instead of the peer port.
	waits, logger := untilItWaits(t)
	lost, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	cfg := nodeConfig("n2", "n1="+node.Client()+",n2="+lost.Addr().String())
	cfg.Logger, cfg.Peers.Listener = logger, lost
	_, err = StartNode(waits, cfg)
	t.Log("a peer at the client port: ", err)
	require.ErrorContains(t, err, "n1 at "+node.Client())

	for _, address := range []string{node.Client(), node.Peer()} {
		for _, nonsense := range []string{"", "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
			"\x16\x03\x01\x02\x00\x01\x00\x01", strings.Repeat("\xff", 100_000)} {
			conn, err := net.Dial("tcp", address)
			require.NoError(t, err)
			require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
			// it may hang up before it has read all, or read the end
			_, _ = io.WriteString(conn, nonsense)
			_ = conn.(*net.TCPConn).CloseWrite()
			_, err = io.Copy(io.Discard, conn) // until it hangs up
			assert.NotErrorIs(t, err, os.ErrDeadlineExceeded)
			require.NoError(t, conn.Close())
		}
	}
	openSession(t, ctx, call(t, node)).hold("still serving")
}
