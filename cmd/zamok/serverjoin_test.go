//go:build unix

package main

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"os"
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

// A node that joined is often started again with the same command line. If the cluster has no
// majority without it, no node answers --join, and the node must not wait for that: they would wait
// for each other.
func TestNodeWithDataStartsWithoutAskingTheCluster(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data := filepath.Join(dir, "n1")
	list, err := peer.ParseList("n1=" + net.JoinHostPort("127.0.0.1", strconv.Itoa(freePorts(t))))
	require.NoError(t, err)
	one, err := api.StartNode(t.Context(), api.NodeConfig{
		Config: raftnode.Config{ID: "n1", Store: store.Config{Dir: data},
			Peers: peer.Config{List: list}},
	})
	require.NoError(t, err)
	require.NoError(t, one.Kill())

	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes calls, and never answers
	require.NoError(t, err)
	defer silent.Close()
	members, err := peer.ParseList("n2=" + silent.Addr().String())
	require.NoError(t, err)
	start := func(dir string) (*api.Node, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		return api.StartNode(ctx, api.NodeConfig{
			Config:      raftnode.Config{ID: "n1", Store: store.Config{Dir: dir}, Join: members},
			ListenPeers: list.Nodes()[0].Address,
		})
	}
	one, err = start(data)
	require.NoError(t, err, "it asked")
	require.NoError(t, one.Kill())
	_, err = start(t.TempDir()) // an empty one: there is no cluster to continue
	require.ErrorContains(t, err, "nothing was started")
}

// A node asks to be taken in until it has its vote: the cluster may be away when it asks, or the
// leader may end between the two steps.
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
		current, err := tlsFiles{cert: cert, key: key, ca: ca.file}.reload(
			slog.New(slog.DiscardHandler), "TLS of peers", tls.VersionTLS13)
		require.NoError(t, err)
		return func() *tls.Config { return current.get().config }
	}
	certificates := peers("n1")
	start := func() *api.Node {
		n, err := api.StartNode(t.Context(), api.NodeConfig{
			Config: raftnode.Config{ID: "n1", Store: store.Config{Dir: filepath.Join(dir, "n1")},
				Peers: peer.Config{List: list, TLS: certificates, AllowedNames: []string{"n2"}}},
			Listen: address(0),
		})
		require.NoError(t, err)
		return n
	}
	one := start()
	var stderr lockedBuffer
	v := &serverCommand{app: &app{stderr: &stderr}, id: "n2", data: filepath.Join(dir, "n2"),
		join: list.String()}
	joins := api.NodeConfig{Config: raftnode.Config{
		ID: "n2", Store: store.Config{Dir: filepath.Join(dir, "n2")},
		Peers: peer.Config{TLS: peers("n2")}, Join: list,
	}}
	two, err := api.StartNode(t.Context(), joins)
	require.NoError(t, err)
	require.NoError(t, one.Kill())
	defer func() { require.NoError(t, two.Kill()) }()
	asked := make(chan error, 1)
	go func() { asked <- v.joinUntilVoter(t.Context(), two) }()
	awaitCondition(t, "it prints that it has no vote",
		func() bool { return strings.Contains(stderr.String(), "not a voter yet") })
	one = start()
	defer func() { require.NoError(t, one.Kill()) }()
	require.NoError(t, <-asked)
	require.True(t, two.Raft().Voter())
}

// With access rules and TLS, a node joins by its certificate for peers alone if the operators named
// it. It is no client of the cluster, and no rule lets nodes do anything.
func TestANodeJoinsWithoutARule(t *testing.T) {
	takesTime(t)
	t.Parallel()
	peers, clients := newTestCA(t), newTestCA(t)
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	token := offline(t, "token", "new", "root", "--file", path("tokens"))
	require.Equal(t, 0, token.code, token.stderr)
	require.NoError(t, os.WriteFile(path("root"), []byte(token.stdout), 0o600))
	require.NoError(t, os.WriteFile(path("rules"),
		[]byte("rules: [{identities: [root], may: [operate]}]\n"), 0o600))
	cert, key := clients.issue(t, "server")
	flags := func(id string) []string {
		peerCert, peerKey := peers.issue(t, id)
		return []string{"--tls-cert", cert, "--tls-key", key, "--tokens", path("tokens"), "--rules",
			path("rules"),
			"--peer-cert", peerCert, "--peer-key", peerKey, "--peer-ca", peers.file}
	}
	s := startServers(t, func(id string) []string {
		return append(flags(id), "--peer-allowed-names", "n[1-4]")
	})
	s.ca = clients
	for i := range s.nodes {
		s.awaitReady(t, i)
	}
	members := "n1=" + s.address(0, 1) + ",n2=" + s.address(1, 1) + ",n3=" + s.address(2, 1)
	joinNode(t, "n4", path("n4"), members, s.address(0, 5), s.address(0, 6), flags("n4")...)
	listed := runZamok(t, &s.devCluster, "members", "--cacert", clients.file, "--token-file",
		path("root"))
	require.Equal(t, 0, listed.code, listed.stderr)
	require.Contains(t, listed.stdout, "n4")

	refused := runZamok(t, nil,
		append([]string{"server", "--id", "x5", "--data", path("x5"), "--join", members,
			"--listen", "127.0.0.1:0", "--peer", "127.0.0.1:0", "--http", ""}, flags("x5")...)...)
	require.Equal(t, exitGeneral, refused.code)
	require.Contains(t, refused.stderr, "knows no node of the name x5 in its cluster")
	require.Contains(t, refused.stderr,
		"start the refusing node with --peer-allowed-names and its name")
}
