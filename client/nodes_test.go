package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// Nodes move from address to address. However often they did, the present leader is found, and what was
// given stays.
func TestAddressesAreForgotten(t *testing.T) {
	n, err := newNodes(Config{Endpoints: []string{"given:1"}, Cluster: "c"})
	require.NoError(t, err)
	defer func() { require.NoError(t, n.close()) }()
	dead := errors.New("no node is there")
	n.note(n.all[0], dead, true)
	var first *node
	for i := range 2 * nodesMax {
		one, err := n.learn(fmt.Sprintf("moved:%d", i))
		require.NoError(t, err)
		require.NotNil(t, one, i)
		n.note(one, dead, true)
		if i == 0 {
			first = one
		}
	}
	require.Equal(t, "given:1", n.all[0].address)
	require.Len(t, n.all, nodesMax)

	// A round that goes from node to node meanwhile leaves out what was forgotten, and ends.
	asked := 0
	err = n.askInTurn(t.Context(), false, func(one *node) error {
		require.True(t, slices.Contains(n.all, one)) // a deep comparison would read what gRPC is changing
		asked++
		for i := range nodesMax {
			_, err := n.learn(fmt.Sprintf("moved again:%d:%d", asked, i))
			require.NoError(t, err)
		}
		return dead
	})
	require.Equal(t, errNotAnswered, err)
	require.LessOrEqual(t, asked, nodesMax)
	n.note(first, dead, true) // which was forgotten
}

// A loop that its caller leaves says nothing of the node that it watched.
func TestALeftWatchLeavesTheLeaderKnown(t *testing.T) {
	n, err := newNodes(Config{Endpoints: []string{"given:1"}, Cluster: "c"})
	require.NoError(t, err)
	defer func() { require.NoError(t, n.close()) }()
	leader := n.all[0]
	n.note(leader, nil, true)
	ctx, cancel := context.WithCancel(t.Context())
	err = n.askInTurn(ctx, true, func(*node) error {
		cancel()
		return ctx.Err()
	})
	require.Equal(t, errNotAnswered, err)
	require.Same(t, leader, n.leader)
	require.NoError(t, leader.last)
}
