package client

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
)

// Nodes move from address to address. However often they did, whoever leads now is found, and what was
// given stays.
func TestAddressesAreForgotten(t *testing.T) {
	n, err := newNodes(Config{Endpoints: []string{"given:1"}, Cluster: "c"})
	require.NoError(t, err)
	defer func() { require.NoError(t, n.close()) }()
	dead := errors.New("nobody is there")
	n.note("given:1", dead)
	for i := range 2 * nodesMax {
		address := fmt.Sprintf("moved:%d", i)
		require.NoError(t, n.learn(address))
		require.NotNil(t, n.conn(address), address)
		n.note(address, dead)
	}
	require.NotNil(t, n.conn("given:1"))
	require.Len(t, n.known, nodesMax)
	require.Len(t, n.order, nodesMax)

	// Who goes from node to node meanwhile leaves out what was forgotten.
	asked := 0
	err, nobody := n.askInTurn(t.Context(), func(conn *grpc.ClientConn) error {
		require.NotNil(t, conn)
		asked++
		for i := range nodesMax {
			require.NoError(t, n.learn(fmt.Sprintf("moved again:%d:%d", asked, i)))
		}
		return dead
	})
	require.NoError(t, err)
	require.True(t, nobody)
	require.Less(t, asked, nodesMax)
	n.note("moved:0", dead)
}
