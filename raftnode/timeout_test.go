package raftnode

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/raftnode/store"
)

// held is the clock of a machine that is kept from running now and then.
type held struct {
	clock.Source
	by atomic.Int64
}

func (h *held) Now() clock.Instant { return h.Source.Now().Add(clock.Span(h.by.Load())) }

// stall holds all nodes up, once a second for as long as it is not ended.
func (h *held) stall(pause time.Duration) (end context.CancelFunc) {
	ctx, end := context.WithCancel(context.Background())
	go func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for ctx.Err() == nil {
			h.by.Add(int64(pause))
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}()
	return end
}

// timeouts are those that the nodes run with.
func (b *bubble) timeouts(nodes ...*bubbleNode) (all []time.Duration) {
	for _, n := range nodes {
		t := time.Duration(0)
		if in := n.instance.Load(); in != nil {
			t = in.timeout
		}
		all = append(all, t)
	}
	return all
}

// fitted waits until these nodes run with a timeout, one of them leads, and each knows that they do.
func (b *bubble) fitted(want, within time.Duration, nodes ...*bubbleNode) (took time.Duration) {
	for began := time.Now(); time.Since(began) < within; time.Sleep(100 * time.Millisecond) {
		fit := !slices.ContainsFunc(b.timeouts(nodes...), func(t time.Duration) bool { return t != want })
		for _, n := range nodes {
			fit = fit && n.Timeout() == want
		}
		if fit && b.fence(b.leader(nodes...)) == nil {
			return time.Since(began)
		}
	}
	require.Equal(b, want, b.timeouts(nodes...), "after %v", within)
	return 0
}

func inBubbleHeld(t *testing.T, test func(*bubble, *held)) {
	var clocks *held
	tune := func(c *Config) {
		if clocks == nil {
			clocks = &held{Source: c.Source}
		}
		c.Source = clocks
	}
	inBubbleSerially(t, tune, func(b *bubble) { test(b, clocks) })
}

// A leader that is kept from running lengthens the timeouts of all nodes, one after the other: a request meanwhile
// is answered. They are kept over a restart of all, and become shorter again when it has been calm for a while.
func TestTheTimeoutsFollowTheStallsOfALeader(t *testing.T) {
	inBubbleHeld(t, func(b *bubble, clocks *held) {
		b.fitted(timeoutMin, time.Minute, b.nodes...)
		end := clocks.stall(60 * time.Millisecond)
		b.Logf("longer after %v", b.fitted(500*time.Millisecond, time.Minute, b.nodes...))
		b.kill(b.nodes...)
		b.start(b.nodes...)
		for _, t := range b.timeouts(b.nodes...) {
			require.Equal(b, 500*time.Millisecond, t, "it is kept")
		}
		end()
		b.leader(b.nodes...)
		took := b.fitted(timeoutMin, 10*time.Minute, b.nodes...)
		require.Greater(b, took, calm)
	})
}

// A leader hands over to a node that announces the new timeout, so one that replays its log after a restart does not.
func TestANodeThatReplaysAnnouncesNothing(t *testing.T) {
	inBubble(t, func(b *bubble) {
		for range 2 * joinLagMax {
			require.NoError(b, b.fence(b.leader(b.nodes...)))
		}
		n := b.others(b.leader(b.nodes...))[0]
		b.kill(n)
		b.start(n)
		b.leader(b.nodes...)
		require.NoError(b, b.fence(b.leader(b.nodes...)))
		time.Sleep(time.Second)
		in := n.instance.Load()
		require.True(b, in.hasReplayed())
		n.state.applied.Store(in.raft.LastIndex() - joinLagMax - 1)
		require.False(b, in.hasReplayed())
		n.state.applied.Store(0) // raft has started, and replays nothing yet
		require.False(b, in.hasReplayed())
	})
}

// Raft is restarted behind a snapshot that was made just before. Otherwise it would replay up to some 40 s of log, and its node
// would take no entries for as long as that takes.
func TestRaftIsRestartedBehindASnapshot(t *testing.T) {
	inBubbleHeld(t, func(b *bubble, clocks *held) {
		b.fitted(timeoutMin, time.Minute, b.nodes...)
		for range 10 {
			require.NoError(b, b.fence(b.leader(b.nodes...)))
		}
		applied := b.leader(b.nodes...).instance.Load().raft.AppliedIndex()
		defer clocks.stall(60 * time.Millisecond)()
		b.fitted(500*time.Millisecond, time.Minute, b.nodes...)
		for _, n := range b.nodes {
			snapshots, err := n.store.Snapshots().List()
			require.NoError(b, err)
			require.NotEmpty(b, snapshots, n.cfg.ID)
			require.GreaterOrEqual(b, snapshots[0].Index, applied, n.cfg.ID)
		}
	})
}

// Two pauses a minute are accidents.
func TestAPauseIsNoReason(t *testing.T) {
	inBubbleHeld(t, func(b *bubble, clocks *held) {
		leader := b.leader(b.nodes...)
		term := leader.Status().Term
		for range 10 {
			clocks.by.Add(int64(time.Second))
			time.Sleep(31 * time.Second)
		}
		require.Equal(b, term, leader.Status().Term, "no leader handed over")
		require.Equal(b, []time.Duration{timeoutMin, timeoutMin, timeoutMin}, b.timeouts(b.nodes...))
	})
}

// From the longest to the shortest it goes by halves, or the leader would be heard too seldom by those that have the
// shorter one.
func TestTimeoutsShrinkByHalves(t *testing.T) {
	t.Parallel()
	inBubbleHeld(t, func(b *bubble, clocks *held) {
		end := clocks.stall(time.Second)
		b.fitted(timeoutMax, 2*time.Minute, b.nodes...)
		end()
		for _, next := range []time.Duration{time.Second, 500 * time.Millisecond, 250 * time.Millisecond} {
			epochs := b.epochs()
			b.fitted(next, 10*time.Minute, b.nodes...)
			require.Equal(b, epochs+1, b.epochs(), "one hand-over, and no election without a cause")
		}
	})
}

// epochs is how many epochs have been opened so far.
func (b *bubble) epochs() int {
	return int(b.leader(b.nodes...).Status().Term)
}

// A node whose disk hangs can't open raft anew, and one that is dead can't be asked: the others continue without them,
// and they follow when they can.
func TestASickNodeKeepsNoOtherFromANewTimeout(t *testing.T) {
	for name, fault := range map[string]func(*bubble, *bubbleNode){
		"hangs": func(b *bubble, n *bubbleNode) { require.NoError(b, n.disk.become("stalling")) },
		"full":  func(b *bubble, n *bubbleNode) { require.NoError(b, n.disk.become("full")) },
		"dead":  func(b *bubble, n *bubbleNode) { b.kill(n) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubbleHeld(t, func(b *bubble, clocks *held) {
				leader := b.leader(b.nodes...)
				others := b.others(leader)
				fault(b, others[0])
				defer clocks.stall(60 * time.Millisecond)()
				b.fitted(500*time.Millisecond, 2*time.Minute, leader, others[1])
				if others[0].disk.heal(); name == "dead" {
					b.start(others[0])
				}
				b.fitted(500*time.Millisecond, 5*time.Minute, b.nodes...)
			})
		})
	}
}

// A node that died with a longer timeout does not count for what sessions need, and the timeouts of the others shrink
// only while a majority stays without the one that opens raft anew.
func TestADeadNodeKeepsItsTimeoutToItself(t *testing.T) {
	t.Parallel()
	inBubbleHeld(t, func(b *bubble, clocks *held) {
		end := clocks.stall(60 * time.Millisecond)
		b.fitted(500*time.Millisecond, 2*time.Minute, b.nodes...)
		end()
		leader := b.leader(b.nodes...)
		dead, left := b.others(leader)[0], b.others(leader)[1]
		b.kill(dead)
		term := leader.Status().Term
		time.Sleep(20 * time.Minute)
		require.Equal(b, term, b.leader(leader, left).Status().Term, "the only follower is left alone")
		require.Equal(b, []time.Duration{500 * time.Millisecond, 500 * time.Millisecond}, b.timeouts(leader, left))
		b.start(dead)
		b.fitted(timeoutMin, 10*time.Minute, b.nodes...)
		b.kill(dead)
		require.Equal(b, timeoutMin, b.leader(b.others(dead)...).Timeout())
		b.start(dead)
	})
}

// What an operator has chosen is not changed by what is measured; of several values the longest holds for all.
func TestAChosenTimeoutStays(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		chosen [3]time.Duration
		want   time.Duration
	}{
		"one":       {[3]time.Duration{300 * time.Millisecond, 300 * time.Millisecond, 300 * time.Millisecond}, 300 * time.Millisecond},
		"different": {[3]time.Duration{300 * time.Millisecond, time.Second, 400 * time.Millisecond}, time.Second},
		"at one":    {[3]time.Duration{0, 700 * time.Millisecond, 0}, 700 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			var clocks *held
			tune := func(c *Config) {
				if clocks == nil {
					clocks = &held{Source: c.Source}
				}
				c.Source, c.ElectionTimeout = clocks, test.chosen[c.ID[1]-'1']
			}
			inBubbleSerially(t, tune, func(b *bubble) {
				defer clocks.stall(60 * time.Millisecond)()
				b.fitted(test.want, 5*time.Minute, b.nodes...)
				term := b.leader(b.nodes...).Status().Term
				time.Sleep(10 * time.Minute)
				require.Equal(b, term, b.leader(b.nodes...).Status().Term, "the leadership does not wander")
				b.fitted(test.want, time.Second, b.nodes...)
			})
		})
	}
}

// A choice that is far below what the nodes run with is reached, by halves, also below what would be measured.
func TestAShorterChoiceIsReached(t *testing.T) {
	chosen := time.Second
	inBubbleSerially(t, func(c *Config) { c.ElectionTimeout = chosen }, func(b *bubble) {
		b.fitted(time.Second, time.Minute, b.nodes...)
		chosen = 100 * time.Millisecond
		for _, n := range b.nodes {
			b.kill(n)
			b.start(n)
			b.leader(b.nodes...)
		}
		b.fitted(chosen, 10*time.Minute, b.nodes...)
	})
}

func TestFitting(t *testing.T) {
	for trip, want := range map[time.Duration]time.Duration{
		0: timeoutMin, 50 * time.Millisecond: timeoutMin, 51 * time.Millisecond: 500 * time.Millisecond,
		160 * time.Millisecond: time.Second, 300 * time.Millisecond: 1500 * time.Millisecond, time.Hour: timeoutMax,
	} {
		assert.Equal(t, want, timeoutFor(trip), trip)
	}
	for from, want := range map[time.Duration]time.Duration{
		timeoutMax: time.Second, 1750 * time.Millisecond: time.Second, 750 * time.Millisecond: 500 * time.Millisecond,
		timeoutMin: timeoutMin, 100 * time.Millisecond: 100 * time.Millisecond,
	} {
		assert.Equal(t, want, halfStep(from, timeoutStep), from)
	}
	assert.Equal(t, 126*time.Millisecond, halfStep(251*time.Millisecond, time.Millisecond))
}

// With two nodes the other one counts, with five the second quickest of the others that answer.
func TestTheTripOfAQuorum(t *testing.T) {
	ms := func(trips ...int) (others []voter) {
		for _, trip := range trips {
			v := voter{trip: time.Duration(trip) * time.Millisecond}
			if trip < 0 {
				v.trip, v.silent = 0, time.Second
			}
			others = append(others, v)
		}
		return others
	}
	for want, others := range map[int][]voter{
		0: ms(), 7: ms(7), 3: ms(90, 3), 9: ms(9, -1), 20: ms(80, 10, 20, 90), 80: ms(-1, -1, 80, 9),
	} {
		assert.Equal(t, time.Duration(want)*time.Millisecond, quorumTrip(others), others)
	}
	assert.Zero(t, quorumTrip(ms(-1, -1)))
	assert.Zero(t, quorumTrip(ms(-1, -1, -1, 9)))
}

// inBubbleSerially is inBubble with another configuration; tune is called for one node at a time.
func inBubbleSerially(t *testing.T, tune func(*Config), test func(*bubble)) {
	var mu sync.Mutex
	inBubbleTuned(t, store.Bolt, func(c *Config) {
		mu.Lock()
		defer mu.Unlock()
		tune(c)
	}, test)
}
