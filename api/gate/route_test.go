package gate

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/fsm"
)

// A node that has just started learns its cluster from the leader. It refuses calls that name one.
func TestANodeWithoutAClusterRefusesCallsThatNameOne(t *testing.T) {
	g := testGate(t, "")
	for _, named := range []string{"?", strings.Repeat("0f", 16)} {
		var e *wire.Error
		require.ErrorAs(t, g.checkCluster([]string{named}), &e)
		assert.Equal(t, zamokpb.Code_CODE_NOT_LEADER, e.Code())
		assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, e.Info.Outcome)
	}
	require.NoError(t, g.checkCluster(nil))
	m, _ := sessionsOf(t)
	g.LearnCluster(m)
	own := "01" + strings.Repeat("00", 15)
	require.Equal(t, own, g.Cluster())
	require.NoError(t, g.checkCluster([]string{own}))
	require.Error(t, g.checkCluster([]string{own, "another"}), "every id that is named counts")
	g.LearnCluster(fsm.New())
	require.NoError(t, g.checkCluster([]string{own}), "a machine that begins anew forgets nothing")
}
