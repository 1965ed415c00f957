package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/client"
)

// Go programs that can't reach the leader, but reach nodes that can: a firewall, an advertised
// address that does not work for them, one load balancer in front of all nodes.

// cutLink cuts the links between two hosts, in both directions.
func (s *Sim) cutLink(a, b string) { s.Network.Cut(route{a, b}, route{b, a}) }

// shortTTL is a ttl that leaves little time to find another way.
func shortTTL(c *client.Config) { c.TTL = 5 * time.Second }

// requireServed requires that a lock is held throughout a span, and that other calls succeed in
// time, each second.
func (s *Sim) requireServed(p *program, held *client.Lock, span, within time.Duration) {
	s.Helper()
	for end := time.Now().Add(span); time.Now().Before(end); time.Sleep(time.Second) {
		require.NoError(s, held.Err(), "at %v", s.Elapsed())
		other, err := p.TryLock(s.Within(within), "other of "+p.host)
		require.NoError(s, err, "at %v", s.Elapsed())
		require.NoError(s, other.Unlock(s.Within(within)))
		_, err = p.admin().Now(s.Within(within))
		require.NoError(s, err)
	}
	require.NoError(s, held.Err())
}

// A client can't reach the leader, but the other nodes. Any of those relays its calls, so it keeps
// its lock and its place in a queue, and other calls succeed. When it can reach the leader again it
// goes back to it.
func TestALeaderThatAClientCannotReach(t *testing.T) {
	runStarted(t, Config{}, func(s *Sim, leader *Node) {
		others := s.Others(leader)
		a, b := s.program("a", shortTTL), s.program("b", nil)
		held, taken := s.lock(a, "x"), s.lock(b, "y")
		waits := s.wait(s.Within(5*time.Minute), a, "y")
		s.cutLink("a", leader.Host)
		time.Sleep(4 * time.Second)
		s.requireServed(a, held, 40*time.Second, 2*time.Second)
		require.NoError(s, taken.Unlock(s.Within(time.Second)))
		s.awaitResult(waits, time.Second)
		for _, relay := range others { // whichever it is that relays
			s.cutLink("a", relay.Host)
			time.Sleep(3 * time.Second)
			s.requireServed(a, held, 10*time.Second, 2*time.Second)
			s.Network.Heal(route{"a", relay.Host}, route{relay.Host, "a"})
		}
		s.Network.HealAll()
		time.Sleep(time.Minute)
		for _, other := range others {
			s.cutLink("a", other.Host)
		}
		// by the leader itself: no other can be reached
		s.requireServed(a, held, 5*time.Second, 100*time.Millisecond)
	})
}

// The node that relays is killed or removed, and then a node leads that the client can reach.
func TestTheNodeThatRelaysEnds(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"killed", "removed"} {
		t.Run(end, func(t *testing.T) {
			runStarted(t, Config{Nodes: 5}, func(s *Sim, leader *Node) {
				a, operator := s.program("a", shortTTL), s.program("operator", nil)
				held := s.lock(a, "x")
				s.cutLink("a", leader.Host)
				for _, relay := range s.Others(leader)[:2] {
					s.cutLink("a", relay.Host)
				}
				time.Sleep(4 * time.Second)
				s.requireServed(a, held, 3*time.Second, 2*time.Second)
				last := s.Others(leader)[2:]
				switch end { // one of the two nodes that it can reach is left
				case "killed":
					last[0].Kill()
					s.requireServed(a, held, 6*time.Second, 4*time.Second)
					last[0].Start()
					time.Sleep(5 * time.Second)
					last[1].Kill()
				case "removed":
					require.NoError(s, operator.admin().Remove(s.Within(time.Minute), last[0].ID))
				}
				s.requireServed(a, held, 6*time.Second, 4*time.Second)
				require.NoError(s, operator.admin().Transfer(s.Within(time.Minute),
					s.Others(leader)[0].ID))
				s.requireServed(a, held, 6*time.Second, 4*time.Second)
			})
		})
	}
}

// The only endpoint is a load balancer in front of a follower; nothing else can be reached.
func TestOneLoadBalancerIsTheOnlyEndpoint(t *testing.T) {
	runStarted(t, Config{}, func(s *Sim, leader *Node) {
		behind := s.Others(leader)[0]
		a := s.program("a", func(c *client.Config) {
			c.TTL, c.Endpoints = 5*time.Second, []string{behind.Host}
		})
		for _, n := range s.Nodes() {
			if n != behind {
				s.cutLink("a", n.Host)
			}
		}
		held := s.lock(a, "x")
		s.requireServed(a, held, 30*time.Second, 3*time.Second)
		r := client.NewReservation(time.Minute, client.ExclusiveItem("z"))
		_, err := a.Reserve(s.Within(5*time.Second), r, func() error { return nil })
		require.NoError(s, err)
		require.NoError(s, a.ReleaseReservation(s.Within(5*time.Second), r))
	})
}
