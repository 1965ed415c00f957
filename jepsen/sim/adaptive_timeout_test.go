package sim

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/client"
)

// slowAllLinks puts all hosts of initial members so far from each other, one way.
func (s *Sim) slowAllLinks(delay time.Duration) {
	for _, a := range s.InitialMembers() {
		for _, b := range s.InitialMembers() {
			if a != b {
				s.Network.SetDelay(a.Host, b.Host, delay, delay/10)
			}
		}
	}
}

// With 80 ms one way between the nodes, a round trip takes longer than a leader with the shortest timeout waits for
// one. The nodes find that out by themselves, and then serve as on any other line: no election without a cause, and
// a leader's death costs the failover that these timeouts make.
func TestHighLatencyClusterServes(t *testing.T) {
	t.Parallel()
	for name, delay := range map[string]time.Duration{"80 ms": 80 * time.Millisecond, "150 ms": 150 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			RunParallel(t, Config{Limit: time.Hour, AdaptiveTimeouts: true}, func(s *Sim) {
				s.slowAllLinks(delay)
				s.startProcesses()
				s.Await(time.Minute, "a leader lasts", func() bool {
					leads := s.Leaders()
					return len(leads) == 1 && leads[0].Status().Applied.Index > 3
				})
				time.Sleep(30 * time.Second) // all nodes are brought to one timeout
				began, epochs := s.Elapsed(), s.Audit.Epochs()
				s.Logf("settled with timeouts of %v", s.timeouts())
				h := s.Holder("holder", "x", 10*time.Second)
				time.Sleep(10 * time.Minute)
				assert.Equal(s, epochs, s.Audit.Epochs(), "no election without a cause")
				assert.True(s, s.Leader().holds("x", h))
				var took []time.Duration
				for range 10 {
					took = append(took, s.failOver())
					time.Sleep(10 * time.Second)
				}
				slices.Sort(took)
				s.Logf("served for %v; failover: median %v, longest %v", s.Elapsed()-began, took[len(took)/2], took[len(took)-1])
				assert.Less(s, took[len(took)/2], 10*time.Second)
				assert.True(s, s.Leader().holds("x", h), "ten failovers cost no session that renews")
				h.Die()
				time.Sleep(2 * opTimeout) // what was on its way is answered
				s.Check()
			})
		})
	}
}

// Programs continue while nodes are moved far apart, and together again.
func TestTimeoutAdaptsToLatencyIncrease(t *testing.T) {
	runStarted(t, Config{AdaptiveTimeouts: true}, func(s *Sim, _ *Node) {
		p := s.program("p", nil)
		cycles := func(d time.Duration) (done int) {
			for began := s.Elapsed(); s.Elapsed()-began < d; done++ {
				ctx := s.Within(time.Minute)
				l, err := p.Lock(ctx, "x")
				require.NoError(s, err)
				require.NoError(s, l.Unlock(ctx))
			}
			return done
		}
		var logged strings.Builder
		short := func(c *client.Config) {
			c.TTL, c.Logger = 3*time.Second, slog.New(slog.NewTextHandler(&logged, nil))
		}
		q := s.program("q", short)
		require.NoError(s, s.lock(q, "q's").Unlock(s.Within(time.Minute)))
		near := cycles(10 * time.Second)
		s.slowAllLinks(80 * time.Millisecond)
		// A leader is found, and all nodes are brought to one timeout. An unlock may be unconfirmed meanwhile.
		for moved := s.Elapsed(); s.Elapsed()-moved < time.Minute; {
			ctx := s.Within(time.Minute)
			l, err := p.Lock(ctx, "x")
			require.NoError(s, err)
			_ = l.Unlock(ctx)
		}
		before := s.Leader().Running().Status().Term
		far := cycles(time.Minute)
		require.Equal(s, before, s.Leader().Running().Status().Term, "no election without a cause")
		s.lock(q, "q's again")
		synctest.Wait()
		require.Contains(s, logged.String(), "ttl is too short for the cluster's election timeout now", "a session that has one is notified")
		require.Contains(s, logged.String(), "at_least=4")
		_, err := s.program("r", short).Lock(s.Within(time.Minute), "r's")
		var refused *client.Error
		require.ErrorAs(s, err, &refused, "and no other begins")
		require.Equal(s, "settings.ttl", refused.Field)
		s.Logf("%d cycles a second near each other, %.1f with 80 ms between", near/10, float64(far)/60)
		require.Greater(s, far, 60*2, "a cycle is two round trips of 160 ms")
		s.Network.HealAll()
		time.Sleep(8 * time.Minute)
		cycles(time.Second)
		for _, n := range s.InitialMembers() {
			require.Less(s, n.Running().Timeout(), time.Second, "they become shorter again")
		}
	})
}

func (s *Sim) timeouts() (all []time.Duration) {
	for _, n := range s.InitialMembers() {
		if up := n.Running(); up != nil {
			all = append(all, up.Timeout())
		}
	}
	return all
}
