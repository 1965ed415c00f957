package claim

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNames(t *testing.T) {
	t.Parallel()
	own, err := Own()
	require.NoError(t, err)
	require.False(t, Dead(own))
	require.False(t, Dead(own+".n1"))
	require.True(t, Dead(own+"0"), "another process with this pid")
	require.True(t, Dead(Prefix+"4194305-1.n1"), "a pid that no process can have")
	require.False(t, Dead("tmpfs"))
}
