package main

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/api"
	"zamok/raftnode"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

// A node that joined is often started again with the same command line. If the cluster has no majority
// without it, no node answers --join, and the node must not wait for that: they would wait for each other.
func TestNodeWithDataStartsWithoutAskingTheCluster(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data := filepath.Join(dir, "n1")
	list, err := peer.ParseList("n1=" + net.JoinHostPort("127.0.0.1", strconv.Itoa(freePorts(t))))
	require.NoError(t, err)
	one, err := api.StartNode(t.Context(), api.NodeConfig{
		Config: raftnode.Config{ID: "n1", Store: store.Config{Dir: data}, Peers: peer.Config{List: list}},
	})
	require.NoError(t, err)
	require.NoError(t, one.Kill())

	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes calls, and never answers
	require.NoError(t, err)
	defer silent.Close()
	v := &serverCommand{app: &app{stderr: &lockedBuffer{}}, id: "n1", data: data, join: silent.Addr().String()}
	began := time.Now()
	var cfg raftnode.Config
	require.NoError(t, v.learnCluster(t.Context(), &cfg))
	require.Empty(t, cfg.JoinCluster)
	require.Less(t, time.Since(began), joinTimeout/2, "it asked")

	v.data = t.TempDir() // an empty one: there is no cluster to continue
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	require.ErrorContains(t, v.learnCluster(ctx, &cfg), "nothing was started")
}

// A node asks to be taken in until it has its vote: the cluster may be away when it asks, or the leader may
// end between the two steps. With TLS between the nodes it takes calls from those that it asked about before.
func TestNodeRetriesJoinUntilVoter(t *testing.T) {
	takesTime(t)
	t.Parallel()
	dir, port := t.TempDir(), freePorts(t)
	address := func(i int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port+i)) }
	list, err := peer.ParseList("n1=" + address(1))
	require.NoError(t, err)
	ca := newTestCA(t)
	peers := func(id string) func() *tls.Config {
		cert, key := ca.issue(t, id)
		current, err := tlsFiles{cert: cert, key: key, ca: ca.file}.reload(slog.New(slog.DiscardHandler), "TLS of peers", tls.VersionTLS13)
		require.NoError(t, err)
		return func() *tls.Config { return current.get().config }
	}
	certificates := peers("n1")
	start := func() *api.Node {
		n, err := api.StartNode(t.Context(), api.NodeConfig{
			Config: raftnode.Config{ID: "n1", Store: store.Config{Dir: filepath.Join(dir, "n1")}, Peers: peer.Config{List: list, TLS: certificates}},
			Listen: address(0),
		})
		require.NoError(t, err)
		return n
	}
	one := start()
	var stderr lockedBuffer
	v := &serverCommand{app: &app{stderr: &stderr}, id: "n2", data: filepath.Join(dir, "n2"), join: address(0)}
	joins := api.NodeConfig{Config: raftnode.Config{
		ID: "n2", Store: store.Config{Dir: filepath.Join(dir, "n2")}, Peers: peer.Config{TLS: peers("n2")},
	}}
	require.NoError(t, v.learnCluster(t.Context(), &joins.Config))
	require.Equal(t, []string{"n1"}, joins.JoinMembers)
	require.NoError(t, one.Kill())
	two, err := api.StartNode(t.Context(), joins)
	require.NoError(t, err)
	defer func() { require.NoError(t, two.Kill()) }()
	asked := make(chan error, 1)
	go func() { asked <- v.joinUntilVoter(t.Context(), two) }()
	awaitCondition(t, "it prints that it has no vote", func() bool { return strings.Contains(stderr.String(), "not a voter yet") })
	one = start()
	defer func() { require.NoError(t, one.Kill()) }()
	require.NoError(t, <-asked)
	require.True(t, two.Raft().Voter())
}
