package sim

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The power fails everywhere, again and again. The end of one node's log is damaged each time, and
// the appends of the others are torn. Nothing that was acknowledged is lost, and the cluster comes
// back by itself.
func TestCutTailsLoseNothing(t *testing.T) {
	RunParallel(t, Config{WriteTimeMax: 40 * time.Millisecond, Tune: withTinyLogs}, func(s *Sim) {
		s.Start()
		load := s.Load(5, 100*time.Millisecond)
		random := s.Random("cut tails")
		const least, most = 30, 90
		owing := map[int]int{} // how often so many nodes owed something when they started
		occurred := func() bool {
			return owing[1] > 0 && owing[2] > 0 && owing[3] > 0 && s.Trace.Count("have answered") > 0 && s.Trace.Count("has what it had lost") > 0
		}
		times := 0
		for ; times < least || !occurred() && times < most; times++ {
			time.Sleep(time.Duration(random.Int64N(int64(2 * time.Second))))
			cutTails(s, random)
			n := 0
			for _, node := range s.Members() {
				if owes, _ := node.Disk.owes(); owes {
					n++
				}
			}
			owing[n]++
			s.Start()
			s.awaitNothingOwed()
		}
		stopAndCheck(s, load)
		require.True(s, occurred(), "so many nodes owed something: %v", owing)
		s.Logf("%d times: so many nodes owed something: %v; %d gave up a part of it", times, owing, s.Trace.Count("have answered"))
	})
}

// cutTails has the power of all nodes fail, and damages the log of one.
func cutTails(s *Sim, random *rand.Rand) {
	struck, entries := random.IntN(len(s.Members())), uint64(1+random.IntN(4))
	torn := []writeOutcome{"", writeTorn}[random.IntN(2)]
	var down sync.WaitGroup
	for i, n := range s.Members() {
		if i == struck {
			down.Go(func() { n.CutTail(entries) })
		} else {
			n.Disk.forcedOutcome.set(torn)
			down.Go(n.LosePower)
		}
	}
	down.Wait()
}

func (s *Sim) awaitNothingOwed() {
	s.Helper()
	s.Await(time.Minute, "no node owes anything", func() bool {
		for _, n := range s.Members() {
			if owes, _ := n.Disk.owes(); owes {
				return false
			}
		}
		return true
	})
}
