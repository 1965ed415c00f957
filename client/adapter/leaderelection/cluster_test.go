package leaderelection

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/api"
	"zamok/client"
	"zamok/client/admin"
	"zamok/raftnode"
	"zamok/raftnode/peer"
)

// testTimeout is how long a test waits for what should happen soon: the machine may be busy.
const testTimeout = 30 * time.Second

// startNodes starts a cluster of three nodes in this process.
func startNodes(t *testing.T) []*api.Node {
	nodes, listeners, list := make([]*api.Node, 3), make([]net.Listener, 3), ""
	for i := range nodes {
		var err error
		listeners[i], err = net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		list += fmt.Sprintf(",n%d=%v", i+1, listeners[i].Addr())
	}
	members, err := peer.ParseList(list[1:])
	require.NoError(t, err)
	started := make(chan error, len(nodes))
	for i := range nodes {
		go func() {
			var err error
			nodes[i], err = api.StartNode(t.Context(), api.NodeConfig{Config: raftnode.Config{
				ID:    fmt.Sprintf("n%d", i+1),
				Peers: peer.Config{List: members, Listener: listeners[i]},
			}})
			started <- err
		}()
	}
	for range nodes {
		require.NoError(t, <-started)
	}
	t.Cleanup(func() {
		for _, n := range nodes {
			require.NoError(t, n.Kill())
		}
	})
	return nodes
}

// killLeader kills the node that leads.
func killLeader(t *testing.T, nodes []*api.Node) {
	require.Eventually(t, func() bool {
		for _, n := range nodes {
			if n.Raft().Status().Leading {
				require.NoError(t, n.Kill())
				return true
			}
		}
		return false
	}, testTimeout, 5*time.Millisecond)
}

// dial makes a client, which is closed with the test, once the cluster has a leader.
func dial(t *testing.T, nodes []*api.Node, cfg client.Config) *client.Client {
	for _, n := range nodes {
		cfg.Endpoints = append(cfg.Endpoints, n.Client())
	}
	cfg.RequestTimeout = testTimeout
	c, err := client.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() }) // whose word may come too late
	_, err = admin.New(c).Now(t.Context())
	require.NoError(t, err)
	return c
}

// network is that of one program, and can be cut.
type network struct {
	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

func (n *network) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	n.mu.Lock()
	defer n.mu.Unlock()
	if err == nil && n.cut {
		return nil, errors.Join(errors.New("the network is cut"), conn.Close())
	}
	n.conns = append(n.conns, conn)
	return conn, err
}

func (n *network) cutOff() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut = true
	for _, conn := range n.conns {
		if conn != nil {
			_ = conn.Close() // which gRPC may have done
		}
	}
}
