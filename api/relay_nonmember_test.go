package api

import (
	"context"
	"log/slog"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"zamok/api/zamokpb"
	"zamok/fsm"
	raftpeer "zamok/raftnode/peer"
)

// TestOnlyMembersRelay: the handshake lets in a server that is no member where TLS is off, or while
// this node still has to apply its removal. It names the caller of a call, and nothing is done for
// it, whatever it calls.
func TestOnlyMembersRelay(t *testing.T) {
	t.Parallel()
	n := startAlone(t)
	var cluster raftpeer.ClusterID
	n.Raft().View(func(m *fsm.Machine) { cluster = raftpeer.ClusterID(m.Cluster()) })
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	removed, err := raftpeer.New(raftpeer.Config{
		Format: fsm.Format(),
		ID:     "removed", Incarnation: raftpeer.Incarnation{9}, Cluster: cluster,
		Listener: listener, HandshakeTimeout: patience,
		Condition: func(raftpeer.Server) raftpeer.Condition { return raftpeer.Condition{} },
		Logger:    slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, removed.Close()) })
	conn, err := grpc.NewClient("passthrough:///n",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return dialAt(ctx, removed.DialRelay, n.Raft().LeaderServer().ID(), n.Peer())
		}))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	to, before := caller{zamokpb.NewZamokClient(conn), zamokpb.NewAdminClient(conn), conn},
		stateOf(n)
	for _, send := range allowedCalls() {
		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(),
			zamokpb.CallerKey, "root", zamokpb.CallerKey, "127.0.0.1:1"), patience)
		err := send(ctx, to)
		cancel()
		assert.Equal(t, zamokpb.Code_CODE_NOT_LEADER, infoOf(t, err).Code, "%v", err)
		assert.ErrorContains(t, err, "removed, which relayed this, is no node of this cluster")
	}
	assert.Equal(t, before, stateOf(n))
}

// stateOf is what callers can change in the state of a node. The index may rise all the same: the
// node announces itself.
func stateOf(n *Node) (state [3]any) {
	n.Raft().View(func(m *fsm.Machine) { state = [3]any{m.Counts(), m.LongestTTL(), m.Quotas()} })
	return state
}

// dialAt dials an address, whose type is Raft's: this package does not import that.
func dialAt[ID, Address ~string](ctx context.Context,
	dial func(context.Context, ID, Address) (raftpeer.RelayConn, error), id ID,
	at string) (net.Conn, error) {
	return dial(ctx, id, Address(at))
}
