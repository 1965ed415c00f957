package sim

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/client"
)

// The clocks of leader and client are as far apart as they may be, in the worse direction, answers take
// their time, and then the client hears nothing more: its lock is lost before another is granted it, however the moment of the cut and
// that of its looks at the clock fall together.
func TestLossReportedInTimeAtMaxDrift(t *testing.T) {
	t.Parallel()
	Run(t, Config{Nodes: 1, Serve: true}, func(s *Sim) {
		slow, next := s.startWithDrift(4 * time.Second)
		random := s.Random("cuts")
		for i := range 40 {
			name := fmt.Sprint("x", i)
			held, err := slow.Lock(s.Within(time.Minute), name)
			require.NoError(s, err)
			s.Network.SetDelay("n1", "slow", 150*time.Millisecond, 0)
			time.Sleep(time.Duration(random.Int64N(int64(2 * time.Second))))
			s.Network.Isolate("slow")
			granted := make(chan time.Time, 1)
			go func() {
				l, err := next.Lock(s.Within(time.Minute), name)
				assert.NoError(s, err)
				granted <- time.Now()
				if l != nil {
					assert.NoError(s, l.Unlock(s.Within(time.Minute)))
				}
			}()
			lostAt := make(chan time.Time, 1)
			go func() {
				<-held.Lost()
				lostAt <- time.Now()
			}()
			got, lost := <-granted, <-lostAt // each takes down its own moment
			assert.False(s, got.Before(lost), "told %v after the next grant", lost.Sub(got))
			s.Network.HealAll()
			time.Sleep(3 * time.Second)
		}
	})
}

// startWithDrift starts a cluster of one node whose clock is as fast as it may be, with a client on a machine whose
// clock is as slow as it may be, and one on a third machine.
func (s *Sim) startWithDrift(ttl time.Duration) (slow, next *client.Client) {
	for _, n := range s.Nodes() {
		n.Clock.rate = 1 + driftMax
	}
	s.Start()
	machine := func(host string, rate float64) *client.Client {
		c, err := client.New(client.Config{
			Endpoints: []string{"n1"}, Dialer: s.Network.NewStack(host).Dial, Clock: newClock(rate),
			TTL: ttl, Logger: slog.New(slog.DiscardHandler),
		})
		require.NoError(s, err)
		s.cleanup(func() { _ = c.Close() })
		return c
	}
	return machine("slow", 1-driftMax), machine("next", 1)
}
