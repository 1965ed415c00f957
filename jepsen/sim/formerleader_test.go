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
	"zamok/raftnode"
)

// attachedCalls is a client that continues asking one node, whatever it says.
type attachedCalls struct {
	mu    sync.Mutex
	calls []call
}

type call struct {
	what string
	sent time.Duration
	back time.Duration
	err  error
	ref  fsm.TicketRef
	a    raftnode.Answer
}

// attach lets clients ask a node for everything, each a few times a second, until the returned
// function is called. They renew one session and acquire new tickets in it.
func (s *Sim) attach(n *Node, h *Holder) (stop func() []call) {
	a := &attachedCalls{}
	var ticket atomic.Uint64
	ticket.Store(h.Ref.Ticket)
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	ask := func(what string, do func(context.Context) (fsm.TicketRef, raftnode.Answer, error)) {
		work.Go(func() {
			for ctx.Err() == nil {
				sent := s.Elapsed()
				limited, done := context.WithTimeout(context.Background(), opTimeout)
				ref, answer, err := do(limited)
				done()
				a.mu.Lock()
				a.calls = append(a.calls, call{what, sent, s.Elapsed(), err, ref, answer})
				a.mu.Unlock()
				pause := 5 * time.Millisecond
				if err != nil {
					pause = retryPause
				}
				_ = sleepContext(ctx, pause)
			}
		})
	}
	ask("fence", func(ctx context.Context) (ref fsm.TicketRef, a raftnode.Answer, err error) {
		a, err = n.ReadBarrier(ctx)
		return ref, a, err
	})
	ask("renew", func(ctx context.Context) (ref fsm.TicketRef, a raftnode.Answer, err error) {
		a, err = n.Renew(ctx, h.Ref.Session)
		return ref, a, err
	})
	for range 10 {
		ask("acquire", func(ctx context.Context) (fsm.TicketRef, raftnode.Answer, error) {
			ref := fsm.TicketRef{Session: h.Ref.Session, Ticket: ticket.Add(1)}
			c := acquireExclusive(ref.Session, ref.Ticket, fmt.Sprint(ref))
			c.AckedThrough = ref.Ticket - min(ref.Ticket, 100)
			a, err := n.Propose(ctx, c)
			return ref, a, err
		})
	}
	return func() []call {
		cancel()
		work.Wait()
		return a.calls
	}
}

// A leader that was cut off may not know it. Whatever it is asked then it must not answer; and what
// had no answer happened at most once, as the state says afterwards.
func TestFormerLeaderAcknowledgesNothing(t *testing.T) {
	RunParallel(t, Config{}, func(s *Sim) {
		leader := s.Start()
		random := s.Random("cuts")
		asked, unknown, took := 0, 0, 0
		for round := range 20 {
			h := s.Holder(fmt.Sprintf("holder %d", round), fmt.Sprintf("lock %d", round), time.Minute)
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
					asked++
					assert.Error(s, c.err, "round %d: %s sent at %v was answered at %v; the cut was at %v, the next epoch at %v",
						round, c.what, c.sent, c.back, cut, opened)
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
		s.Logf("%d calls to deposed leaders; of %d acquisitions without answer %d took effect", asked, unknown, took)
		require.Greater(s, asked, 500)
		require.Greater(s, unknown, 15)
		require.NotZero(s, took, "none of the unknown took effect: the other half was not tested")
		require.Less(s, took, unknown, "all of the unknown took effect: the other half was not tested")
		s.Check()
	})
}

// With nothing else on its way, so that nothing holds up what is asked.
func TestFormerLeaderAnswersNoRead(t *testing.T) {
	RunParallel(t, Config{}, func(s *Sim) {
		leader := s.Start()
		h := s.Holder("holder", "x", time.Minute)
		h.Die()
		for way := range 3 {
			for what, ask := range map[string]func(context.Context) (raftnode.Answer, error){
				"a fence":   leader.ReadBarrier,
				"a renewal": func(ctx context.Context) (raftnode.Answer, error) { return leader.Renew(ctx, h.Ref.Session) },
				"a command": func(ctx context.Context) (raftnode.Answer, error) {
					return leader.Propose(ctx, &fsm.Drop{Session: h.Ref.Session, Ticket: 99})
				},
			} {
				s.cutIncoming(leader, way)
				ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
				a, err := ask(ctx)
				cancel()
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
			s.Network.Cut(leader.Host, n.Host) // nobody hears it
		}
		if way != 2 {
			s.Network.Cut(n.Host, leader.Host) // it hears nobody: what it says last may be in their logs
		}
	}
}

// resolveUnknown asks again for every acquisition without an answer, twice, and holds both answers against
// the log: it took effect once, then or now. It returns how many there were, and how many had taken
// effect before they were asked again.
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

// An epoch is begun by an entry that nobody but its own node may propose. To see what a reading of an
// old epoch does, one is made here: after it the leader's readings are of an epoch that is over.
func TestClockReadingOfOldEpochIsIgnored(t *testing.T) {
	RunParallel(t, Config{}, func(s *Sim) {
		leader := s.Start()
		dead := s.Holder("dead", "lost", 2*time.Second)
		dead.Die()
		forged := leader.MustPropose(&fsm.LeaderStart{Node: leader.ID, Nonce: 1, Cluster: fsm.ClusterID{1}})
		stood := forged.Time
		for range 30 {
			time.Sleep(100 * time.Millisecond)
			assert.Equal(s, stood, leader.MustPropose(nil).Time, "an old reading moved time")
		}
		assert.False(s, dead.Ended(), "a lease ended while time stood")

		leader.Kill()
		next := s.LeaderOtherThan(leader)
		s.Await(5*time.Second, "with a true epoch time goes on", dead.Ended)
		assert.Greater(s, next.MustPropose(nil).Time, stood.Add(clock.Second))
		s.Check()
	})
}

// A node opens its epoch for the entry that it proposed itself, not for one that bears its name.
func TestLeaderStartWithWrongNonceIsIgnored(t *testing.T) {
	RunParallel(t, Config{}, func(s *Sim) {
		leader := s.Start()
		for _, n := range s.Others(leader) {
			forged := leader.MustPropose(&fsm.LeaderStart{Node: n.ID, Nonce: 1, Cluster: fsm.ClusterID{1}})
			s.AwaitApplied(leader, n, time.Second)
			n.Running().View(func(m *fsm.Machine) {
				assert.Equal(s, forged.Result.Index, m.Epoch(), "the machines took it for an epoch")
			})
			time.Sleep(time.Second)
			assert.Equal(s, []*Node{leader}, s.Leaders())
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			_, err := n.ReadBarrier(ctx)
			cancel()
			require.True(s, notDone(err), "%v", err)
		}
		s.Check()
	})
}

// What followers answer to messages from before a question is no answer to it: the leader that they spoke
// for may be deposed by now.
func TestStaleRepliesDoNotConfirmLeadership(t *testing.T) {
	RunParallel(t, Config{}, func(s *Sim) {
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
