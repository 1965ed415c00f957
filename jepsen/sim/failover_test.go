package sim

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// How long a cluster is without a leader after it was killed: until another node has committed an entry
// that was proposed after the kill, which is what a fence waits for.
func TestFailoverTime(t *testing.T) {
	kills := 200
	if testing.Short() {
		kills = 40
	}
	runStarted(t, Config{}, func(s *Sim, _ *Node) {
		random := s.Random("kills")
		h := s.Holder("holder", "x", 10*time.Second)
		var took []time.Duration
		for range kills {
			time.Sleep(time.Second + time.Duration(random.Int64N(int64(time.Second))))
			took = append(took, s.failOver())
		}
		slices.Sort(took)
		median, p95 := took[len(took)/2], took[len(took)*95/100]
		s.Logf("%d kills: median %v, p95 %v, longest %v", kills, median, p95, took[len(took)-1])
		assert.Less(s, median, 600*time.Millisecond)
		assert.Less(s, p95, 900*time.Millisecond)
		assert.True(s, s.Leader().holds("x", h), "a holder that renewed lost its lock")
		s.Check()
	})
}

// failOver kills the leader, waits until a read barrier succeeds at another node, and starts the old leader
// again. It returns for how long the cluster was without a leader.
func (s *Sim) failOver() (took time.Duration) {
	s.Helper()
	old, from := s.Leader(), s.Elapsed()
	old.Kill()
	var leader *Node
	s.Await(time.Minute, "a read barrier succeeds", func() bool {
		for _, n := range s.Others(old) {
			ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
			_, err := n.ReadBarrier(ctx)
			cancel()
			if leader = n; err == nil {
				return true
			}
		}
		return false
	})
	took = s.Elapsed() - from
	old.StartProcess()
	require.NoError(s, old.AwaitOpen(s.Within(time.Minute)))
	s.AwaitApplied(leader, old, time.Minute)
	return took
}
