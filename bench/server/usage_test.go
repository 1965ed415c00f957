package server

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The processor time of a child counts, while it runs and after it has ended: a shell starts one.
func TestChildrenAreCounted(t *testing.T) {
	work := "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"
	shell := command{path: "sh",
		args: []string{"-c", "sh -c '" + work + "'; echo done; exec sleep 60"}}
	c, err := system{nodes: 1,
		command: func(node, []node) (command, error) { return shell, nil }}.start(t.TempDir())
	require.NoError(t, err)
	defer c.Stop()
	require.Eventually(t, func() bool {
		log, err := os.ReadFile(c.processes[0].log)
		return err == nil && len(log) > 0
	}, 30*time.Second, 10*time.Millisecond)
	usage, err := c.Usage()
	require.NoError(t, err)
	require.Positive(t, usage.CPU)
	require.Positive(t, usage.Memory)
	require.NoError(t, c.Alive())
	c.Kill(0)
	require.ErrorContains(t, c.Alive(), "n1 has ended")
}
