package sim

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/jepsen/workload"
)

// The power of all nodes fails again and again. Each time the ends of the logs of a minority are
// damaged, and the appends of the others are torn. Acknowledged writes survive, and the cluster
// recovers by itself.
func TestCutTailsLoseNothing(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{3, 5} {
		t.Run(fmt.Sprintf("%d nodes", nodes), func(t *testing.T) { cutTailsLoseNothing(t, nodes) })
	}
}

func cutTailsLoseNothing(t *testing.T, nodes int) {
	config := Config{Nodes: nodes, WriteTimeMax: 40 * time.Millisecond, Tune: withTinyLogs}
	RunParallel(t, config, func(s *Sim) {
		s.Start()
		load := s.Load(5, 100*time.Millisecond)
		random := s.Random("cut tails")
		const least, most = 30, 90
		damaged := (nodes - 1) / 2
		owing := make([]int, nodes+1) // how often so many nodes owed something at a start
		occurred := func() bool {
			return owing[damaged] > 0 && owing[damaged+1] > 0 && owing[damaged+2] > 0 &&
				s.Trace.Count("nothing above this end") > 0 &&
				s.Trace.Count("has what it had lost") > 0
		}
		times := 0
		for ; times < least || !occurred() && times < most; times++ {
			time.Sleep(workload.UpTo(random, 2*time.Second))
			cutTails(s, random, damaged)
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
		s.Logf("%d times: so many nodes owed something: %v; %d gave up a part of it",
			times, owing, s.Trace.Count("nothing above this end"))
	})
}

// cutTails lets the power of all nodes fail, and damages the logs of so many.
func cutTails(s *Sim, random *rand.Rand, damaged int) {
	torn := []writeOutcome{"", writeTorn}[random.IntN(2)]
	var down sync.WaitGroup
	for place, i := range random.Perm(len(s.Members())) {
		n, entries := s.Members()[i], uint64(1+random.IntN(4))
		if place < damaged {
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
