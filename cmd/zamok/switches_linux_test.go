package main

import (
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestContextSwitches: how often the threads of three nodes go to sleep, for a commit of one caller
// that locks and unlocks, and in a second at rest. The ceilings are a little above what is measured
// on two cores. Run it alone (make switches).
func TestContextSwitches(t *testing.T) {
	if os.Getenv("ZAMOK_SWITCHES") == "" {
		t.Skip("it wants the machine for itself: make switches")
	}
	const ceiling, ceilingAtRest = 30, 1800
	s := startServers(t, func(string) []string { return []string{"--election-timeout", "250ms"} })
	for i := range s.nodes {
		s.awaitReady(t, i)
	}
	commit, rest := math.Inf(1), math.Inf(1)
	for range 5 { // other programs, and elections, make it more
		started := s.switches(t)
		r := runZamok(t, &s.devCluster, "bench", "uncontended", "--clients", "1",
			"--duration", "2s")
		after := s.switches(t)
		require.Equal(t, 0, r.code, r.stderr)
		cycles := regexp.MustCompile(`(\d+) cycles`).FindStringSubmatch(r.stdout)
		require.NotNil(t, cycles, r.stdout)
		n, err := strconv.ParseFloat(cycles[1], 64)
		require.NoError(t, err)
		require.Greater(t, n, 100.0)
		commit = min(commit, (after-started)/n/2)

		before, began := s.switches(t), time.Now()
		<-time.After(2 * time.Second) // the measured time
		rest = min(rest, (s.switches(t)-before)/time.Since(began).Seconds())
	}
	t.Logf("%.1f context switches for a commit, %.0f a second at rest", commit, rest)
	require.LessOrEqual(t, commit, float64(ceiling))
	require.LessOrEqual(t, rest, float64(ceilingAtRest))
}

// switches is how often the threads of all nodes have gone to sleep.
func (s *serverSet) switches(t *testing.T) (sum float64) {
	voluntary := regexp.MustCompile(`(?m)^voluntary_ctxt_switches:\s+(\d+)$`)
	for _, node := range s.nodes {
		threads, err := filepath.Glob("/proc/" + strconv.Itoa(node.Process.Pid) + "/task/*/status")
		require.NoError(t, err)
		require.NotEmpty(t, threads)
		for _, thread := range threads {
			status, err := os.ReadFile(thread)
			require.NoError(t, err)
			found := voluntary.FindSubmatch(status)
			require.NotNil(t, found, "%s", status)
			n, err := strconv.ParseFloat(string(found[1]), 64)
			require.NoError(t, err)
			sum += n
		}
	}
	return sum
}
