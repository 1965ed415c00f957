package server

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseStatNameWithParentheses(t *testing.T) {
	s, err := parseStat("7 (a) b (c) S 3 7 7 0 -1 4194560 1 2 3 4 100 20 3 1 20 0 1 0 5 6 7")
	require.NoError(t, err)
	require.Equal(t, procStat{parent: 3, threads: 1, cpu: 1.2, childCPU: 0.04}, s)
	_, err = parseStat("7 (short) S 3")
	require.Error(t, err)
}

// What a child did counts, while it lives and after it has ended: a shell starts one that works.
func TestChildrenAreCounted(t *testing.T) {
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("there is no shell here")
	}
	work := "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"
	c, err := new(Cluster).run(t.TempDir(), command{name: "sh", path: "sh", args: []string{"-c", "sh -c '" + work + "'; echo done; exec sleep 60"}})
	require.NoError(t, err)
	defer c.Stop()
	require.Eventually(t, func() bool {
		log, err := os.ReadFile(c.processes[0].log)
		return err == nil && len(log) > 0
	}, 30*time.Second, 10*time.Millisecond)
	spent, err := c.CPU()
	require.NoError(t, err)
	require.Positive(t, spent)
	memory, err := c.Memory()
	require.NoError(t, err)
	require.Positive(t, memory)
	require.NoError(t, c.Alive())
	require.NoError(t, c.Kill(0))
	require.ErrorContains(t, c.Alive(), "sh has ended")
}
