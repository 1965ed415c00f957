package api

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/raftnode/store"
)

// A node whose log has lost its end, and that no leader helps, says for whom it waits.
func TestANodeThatOwesIsNotReady(t *testing.T) {
	t.Parallel()
	disk := new(store.Memory)
	again := nodeConfig("n1", "")
	c := startCluster(t, 3, func(cfg *NodeConfig) {
		if cfg.ID == "n1" {
			cfg.Store.Memory = disk
			again.Peers.List = cfg.Peers.List
		}
	})
	c.leader()
	require.Eventually(t, func() bool { return c.nodes[0].Raft().Status().Applied.Index > 0 },
		patience, time.Millisecond)
	for _, n := range c.nodes {
		require.NoError(t, n.Kill())
	}
	require.NoError(t, disk.Cut(1))
	again.Store.Memory, again.ListenPeers, again.ListenHTTP = disk, c.nodes[0].Peer(), "127.0.0.1:0"
	n, err := StartNode(t.Context(), again)
	require.NoError(t, err)
	c.nodes[0] = n
	var code int
	var text string
	require.Eventually(t, func() bool {
		code, text = fetch(t, n.HTTP(), "/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(text, "lost its end")
	}, patience, 5*time.Millisecond)
	require.Contains(t, text, "n2: ")
	require.Contains(t, text, "n3: ")
}
