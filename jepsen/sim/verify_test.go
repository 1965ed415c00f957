package sim

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// What followers answer to messages from before a question is no answer to it: the leader that they spoke
// for may be deposed by now.
func TestStaleRepliesDoNotConfirmLeadership(t *testing.T) {
	t.Parallel()
	Run(t, Config{}, func(s *Sim) {
		const delay = 15 * time.Millisecond
		leader := s.Start()
		for round := range 8 {
			for _, n := range s.Others(leader) {
				s.Network.SetDelay(leader.Host, n.Host, delay, 0)
				s.Network.SetDelay(n.Host, leader.Host, delay, 0)
			}
			time.Sleep(time.Second + time.Duration(round)*7*time.Millisecond)
			for _, n := range s.Others(leader) {
				s.Network.Cut(leader.Host, n.Host) // nobody hears it any more, and what was said on the way arrives
			}
			var asked sync.WaitGroup
			for i := range 5 {
				asked.Go(func() {
					time.Sleep(time.Duration(i) * delay / 5)
					ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
					defer cancel()
					_, err := leader.ReadBarrier(ctx)
					assert.Error(s, err, "round %d: nobody has heard from the leader since it was asked", round)
				})
			}
			asked.Wait()
			next := s.LeaderOtherThan(leader)
			s.Network.HealAll()
			s.AwaitApplied(next, leader, backoffMax)
			leader = s.Leader()
		}
		s.Check()
	})
}
