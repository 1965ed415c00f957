package raftnode

import (
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

// The server is notified when an epoch begins, and when it has ended.
func TestEpochIsAnnounced(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	list, err := peer.ParseList("n1=" + listener.Addr().String())
	require.NoError(t, err)
	var n *Node
	opened, announced := make(chan struct{}), make(chan bool, 10)
	n, err = Open(t.Context(), Config{
		ID: "n1", Store: store.Config{Memory: &store.Memory{}}, Peers: peer.Config{List: list, Listener: listener}, Fatal: func(error) {},
		Epoch: func(open bool) {
			<-opened
			assert.False(t, n.queue.open.Load(), "nothing is taken before the epoch is announced, nor after its end is")
			announced <- open
		},
	})
	close(opened)
	require.NoError(t, err)
	require.True(t, <-announced)
	until(t, "the queue opens", n.queue.open.Load)
	require.NoError(t, n.Kill())
	require.False(t, <-announced)
	require.Empty(t, announced)
}
