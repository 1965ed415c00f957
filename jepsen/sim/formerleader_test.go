package sim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/fsm"
	"zamok/jepsen/workload"
	"zamok/raftnode"
)

// call is one request to a node, by a client that calls no other node.
type call struct {
	what string
	sent time.Duration
	err  error
	ref  fsm.TicketRef // of an acquisition
}

// attach starts clients that send read barriers, renewals and acquisitions to a node, each many
// times a second, until the returned function is called. They renew the session of a holder and
// acquire new tickets in it.
func (s *Sim) attach(n *Node, h *Holder) (stop func() []call) {
	var mu sync.Mutex
	var calls []call
	var ticket atomic.Uint64
	ticket.Store(h.Ref.Ticket)
	var stops []func()
	loop := func(what string, do func(context.Context, *call) (raftnode.Answer, error)) {
		stops = append(stops, background(func(ctx context.Context) {
			for interval := time.Duration(0); workload.Sleep(ctx, interval); {
				bounded, done := context.WithTimeout(context.Background(), opTimeout)
				c := call{what: what, sent: s.Elapsed()}
				_, c.err = do(bounded, &c)
				done()
				mu.Lock()
				calls = append(calls, c)
				mu.Unlock()
				if interval = 5 * time.Millisecond; c.err != nil {
					interval = retryInterval
				}
			}
		}))
	}
	loop("fence", func(ctx context.Context, _ *call) (raftnode.Answer, error) {
		return n.ReadBarrier(ctx)
	})
	loop("renew", func(ctx context.Context, _ *call) (raftnode.Answer, error) {
		return n.Renew(ctx, h.Ref.Session)
	})
	for range 10 {
		loop("acquire", func(ctx context.Context, c *call) (raftnode.Answer, error) {
			c.ref = fsm.TicketRef{Session: h.Ref.Session, Ticket: ticket.Add(1)}
			acquire := acquireExclusive(c.ref.Session, c.ref.Ticket, fmt.Sprint(c.ref))
			acquire.AckedThrough = c.ref.Ticket - min(c.ref.Ticket, 100)
			return n.Propose(ctx, acquire)
		})
	}
	return func() []call {
		for _, stop := range stops {
			stop()
		}
		return calls
	}
}

// A leader that was cut off may not know it. It must leave every later call unanswered. And a call
// without an answer takes effect at most once, as the state shows afterwards.
func TestFormerLeaderAcknowledgesNothing(t *testing.T) {
	runStarted(t, Config{}, func(s *Sim, leader *Node) {
		random := s.Random("cuts")
		afterCut, unknown, took := 0, 0, 0
		for round := range 20 {
			h := s.Holder(fmt.Sprintf("holder %d", round), fmt.Sprintf("lock %d", round),
				time.Minute)
			stop := s.attach(leader, h)
			time.Sleep(300*time.Millisecond + time.Duration(random.IntN(20_000_000)))
			cut := s.Elapsed()
			s.cutIncoming(leader, round%3)
			next := s.LeaderOtherThan(leader)
			next.MustPropose(nil)
			opened := s.Elapsed()
			time.Sleep(time.Second)
			calls := stop()
			for _, c := range calls {
				if c.sent > cut {
					afterCut++
					assert.Error(s, c.err,
						"round %d: %s sent at %v was answered; the cut was at %v, the next "+
							"epoch at %v",
						round, c.what, c.sent, cut, opened)
				}
				if c.err != nil && !errors.Is(c.err, raftnode.ErrUnknown) {
					_, refused := errors.AsType[*raftnode.NotLeaderError](c.err)
					assert.True(s, refused, "%v", c.err)
				}
			}
			s.Network.HealAll()
			s.AwaitApplied(next, leader, 5*time.Second)
			n, m := resolveUnknown(s, next, calls)
			unknown, took = unknown+n, took+m
			h.Die()
			leader = s.Leader()
		}
		s.Logf("%d calls to deposed leaders; of %d acquisitions without answer %d took effect",
			afterCut, unknown, took)
		require.Greater(s, afterCut, 500)
		require.Greater(s, unknown, 15)
		require.NotZero(s, took, "none of the unknown took effect: the other half was not tested")
		require.Less(s, took, unknown,
			"all of the unknown took effect: the other half was not tested")
		s.Check()
	})
}

// Without any other call in flight, which could delay the read.
func TestFormerLeaderAnswersNoRead(t *testing.T) {
	runStarted(t, Config{}, func(s *Sim, leader *Node) {
		h := s.Holder("holder", "x", time.Minute)
		h.Die()
		for way := range 3 {
			for what, call := range map[string]func(context.Context) (raftnode.Answer, error){
				"a fence": leader.ReadBarrier,
				"a renewal": func(ctx context.Context) (raftnode.Answer, error) {
					return leader.Renew(ctx, h.Ref.Session)
				},
				"a command": func(ctx context.Context) (raftnode.Answer, error) {
					return leader.Propose(ctx, &fsm.Drop{Session: h.Ref.Session, Ticket: 99})
				},
			} {
				s.cutIncoming(leader, way)
				a, err := call(s.Within(opTimeout))
				assert.Error(s, err, "%s was answered: %+v", what, a)
				next := s.LeaderOtherThan(leader)
				s.Network.HealAll()
				s.AwaitApplied(next, leader, backoffMax)
				leader = s.Leader()
			}
		}
		s.Check()
	})
}

// cutIncoming cuts a leader off in one of three ways.
func (s *Sim) cutIncoming(leader *Node, way int) {
	for _, n := range s.Others(leader) {
		if way != 1 {
			s.Network.Cut(route{leader.Host, n.Host}) // what it sends is lost
		}
		if way != 2 {
			s.Network.Cut(route{n.Host, leader.Host}) // what it sends last may be in their logs
		}
	}
}

// resolveUnknown repeats every acquisition without an answer, twice, and compares both answers with
// the log: it took effect once, the first time or now. It returns how many there were, and how many
// had taken effect before they were repeated.
func resolveUnknown(s *Sim, leader *Node, calls []call) (unknown, took int) {
	s.Helper()
	again := s.Elapsed()
	for _, c := range calls {
		if c.what != "acquire" || !errors.Is(c.err, raftnode.ErrUnknown) {
			continue
		}
		unknown++
		command := acquireExclusive(c.ref.Session, c.ref.Ticket, fmt.Sprint(c.ref))
		first := leader.MustPropose(command)
		second := leader.MustPropose(command)
		require.Equal(s, first.Result.Token, second.Result.Token, "one ticket, two grants")
		at, token, granted := s.Audit.Granted(c.ref)
		require.True(s, granted, "%v was acknowledged and is not in the log", c.ref)
		require.Equal(s, first.Result.Token, token)
		if at < again {
			took++
		}
	}
	return unknown, took
}

// An epoch begins with an entry that only its own node may propose. This test forges such an entry.
// After it the leader's readings belong to an old epoch. The node that the entry names does not
// lead either: an epoch begins for it only by an entry that it proposed itself.
func TestClockReadingOfOldEpochIsIgnored(t *testing.T) {
	runStarted(t, Config{}, func(s *Sim, leader *Node) {
		dead := s.Holder("dead", "lost", 2*time.Second)
		dead.Die()
		var stood clock.Time
		for _, n := range append(s.Others(leader), leader) {
			forged := leader.MustPropose(
				&fsm.LeaderStart{Node: n.ID, Nonce: 1, Cluster: fsm.ClusterID{1}})
			stood = forged.Time
			s.AwaitApplied(leader, n, time.Second)
			n.View(func(m *fsm.Machine) {
				assert.Equal(s, forged.Result.Index, m.Epoch(),
					"the machines applied it as an epoch")
			})
			for range 30 {
				time.Sleep(100 * time.Millisecond)
				assert.Equal(s, stood, leader.MustPropose(nil).Time, "an old reading moved time")
			}
			assert.Equal(s, []*Node{leader}, s.Leaders())
			if n != leader {
				_, err := n.ReadBarrier(s.Within(time.Second))
				_, refused := errors.AsType[*raftnode.NotLeaderError](err)
				require.True(s, refused, "%v", err)
			}
		}
		assert.False(s, dead.Ended(), "a lease ended while time stood")

		leader.Kill()
		next := s.LeaderOtherThan(leader)
		s.Await(5*time.Second, "with a true epoch time passes", dead.Ended)
		assert.Greater(s, next.MustPropose(nil).Time, stood.Add(clock.Second))
		s.Check()
	})
}

// A reply to a message that was sent before a read barrier does not confirm the leader for that
// barrier: it may be deposed by now.
func TestStaleRepliesDoNotConfirmLeadership(t *testing.T) {
	RunParallel(t, Config{}, func(s *Sim) {
		const delay = 15 * time.Millisecond
		leader := s.Start()
		for round := range 8 {
			s.Network.SetDelay(delay, 0, s.routes(leader.Host)...)
			time.Sleep(time.Second + time.Duration(round)*7*time.Millisecond)
			for _, n := range s.Others(leader) {
				// new messages are lost; those in flight arrive
				s.Network.Cut(route{leader.Host, n.Host})
			}
			var barriers sync.WaitGroup
			for i := range 5 {
				barriers.Go(func() {
					time.Sleep(time.Duration(i) * delay / 5)
					_, err := leader.ReadBarrier(s.Within(opTimeout))
					assert.Error(s, err,
						"round %d: no node has received anything from the leader since the call",
						round)
				})
			}
			barriers.Wait()
			next := s.LeaderOtherThan(leader)
			s.Network.HealAll()
			s.AwaitApplied(next, leader, backoffMax)
			leader = s.Leader()
		}
		s.Check()
	})
}
