package sim

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/fsm"
)

// How long a cluster is without a leader after it was killed: until another node has committed an entry
// that was proposed after the kill, which is what a fence waits for.
func TestFailoverTime(t *testing.T) {
	kills := 200
	if testing.Short() {
		kills = 40
	}
	RunParallel(t, Config{}, func(s *Sim) {
		leader := s.Start()
		random := s.Random("kills")
		h := s.Holder("holder", "x", 10*time.Second)
		var took []time.Duration
		for range kills {
			time.Sleep(time.Second + time.Duration(random.Int64N(int64(time.Second))))
			old := leader
			from := s.Elapsed()
			old.Kill()
			leader = s.awaitReadBarrier(old, 2*electionTimeMax)
			took = append(took, s.Elapsed()-from)
			old.Start()
			s.AwaitApplied(leader, old, electionTimeMax)
		}
		slices.Sort(took)
		median, p95 := took[len(took)/2], took[len(took)*95/100]
		s.Logf("%d kills: median %v, p95 %v, longest %v", kills, median, p95, took[len(took)-1])
		assert.Less(s, median, 600*time.Millisecond)
		assert.Less(s, p95, 900*time.Millisecond)
		assert.True(s, leader.holds("x", h), "a holder that renewed lost its lock")
		s.Check()
	})
}

// awaitReadBarrier waits until a fence succeeds at another node than this one.
func (s *Sim) awaitReadBarrier(old *Node, within time.Duration) (leader *Node) {
	s.Helper()
	s.Await(within, "a fence succeeds", func() bool {
		for _, n := range s.Others(old) {
			ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
			_, err := n.ReadBarrier(ctx)
			cancel()
			if err == nil {
				leader = n
				return true
			}
		}
		return false
	})
	return leader
}

func TestGrantAndHandover(t *testing.T) {
	t.Parallel()
	for _, disks := range []Disks{InMemory, OnDisk} {
		Run(t, Config{Disks: disks}, func(s *Sim) {
			leader := s.Start()
			id := leader.OpenSession("holder", 10*time.Second)
			a := leader.Lock(id, 1, "x")
			require.Equal(s, fsm.Granted, a.Result.State)
			leader.Kill()
			next := s.LeaderOtherThan(leader)
			next.Running().View(func(m *fsm.Machine) {
				require.True(s, m.Holds("x", a.Result.Token, fsm.TicketRef{}))
			})
			leader.Start()
			s.AwaitApplied(next, leader, time.Second)
			require.Empty(s, s.Audit.Violations())
		})
	}
}
