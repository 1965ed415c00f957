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
)

// held is the clock of a machine that is kept from running now and then.
type held struct {
	clock.Source
	by atomic.Int64
}

func (h *held) Now() clock.Instant { return h.Source.Now().Add(clock.Span(h.by.Load())) }

// stall holds all nodes up, four times a second for as long as it is not ended.
func (h *held) stall(pause time.Duration) (end context.CancelFunc) {
	ctx, end := context.WithCancel(context.Background())
	go func() {
		tick := time.NewTicker(250 * time.Millisecond)
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
		all = append(all, n.timing.timeout())
	}
	return all
}

// unmoved checks, at its end, that a test has restarted no raft and changed no leader, and that
// each command was answered in time meanwhile.
func (b *bubble) unmoved() (check func()) {
	leader := b.leader(b.nodes...)
	require.NoError(b, b.fence(leader))
	term := leader.Status().Term
	var instances []*raftRun
	for _, n := range b.nodes {
		instances = append(instances, n.runs.latest.Load())
	}
	ctx, end := context.WithCancel(b.Context())
	var failed error
	var serving sync.WaitGroup
	serving.Go(func() {
		for ; ctx.Err() == nil && failed == nil; time.Sleep(time.Second) {
			failed = b.fence(leader)
		}
	})
	return func() {
		end()
		serving.Wait()
		require.NoError(b, failed, "every command is answered")
		require.Equal(b, term, leader.Status().Term, "no leader handed over")
		for i, n := range b.nodes {
			require.Same(b, instances[i], n.runs.latest.Load(), "raft was not restarted")
		}
	}
}

// fitted waits until these nodes run with a timeout, one of them leads, and each knows that they
// do.
func (b *bubble) fitted(want, within time.Duration, nodes ...*bubbleNode) (took time.Duration) {
	for began := time.Now(); time.Since(began) < within; time.Sleep(100 * time.Millisecond) {
		fit := !slices.ContainsFunc(b.timeouts(nodes...),
			func(t time.Duration) bool { return t != want })
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

// A leader that is kept from running again and again lengthens the timeouts of all nodes. They are
// kept over a restart of all, and become shorter again when it has been calm for a while. Neither
// costs anything.
func TestTheTimeoutsFollowTheStallsOfALeader(t *testing.T) {
	inBubbleHeld(t, func(b *bubble, clocks *held) {
		b.fitted(timeoutMin, time.Minute, b.nodes...)
		check := b.unmoved()
		end := clocks.stall(230 * time.Millisecond)
		took := b.fitted(1250*time.Millisecond, time.Minute, b.nodes...)
		require.Less(b, took, 5*time.Second, "they rise fast")
		check()
		b.kill(b.nodes...)
		b.start(b.nodes...)
		for _, t := range b.timeouts(b.nodes...) {
			require.Equal(b, 1250*time.Millisecond, t, "it is kept")
		}
		end()
		b.leader(b.nodes...)
		check = b.unmoved()
		took = b.fitted(timeoutMin, 10*time.Minute, b.nodes...)
		require.Greater(b, took, calm)
		check()
	})
}

// So does the distance between nodes, and a leader whose raft was opened with the shortest lease
// leads on.
func TestTheTimeoutsFollowTheDistance(t *testing.T) {
	t.Parallel()
	for trip, want := range map[time.Duration]time.Duration{
		90 * time.Millisecond:  500 * time.Millisecond,
		140 * time.Millisecond: 750 * time.Millisecond, 370 * time.Millisecond: timeoutMax,
	} {
		t.Run(trip.String(), func(t *testing.T) {
			inBubbleSerially(t, nil, func(b *bubble) {
				b.fitted(timeoutMin, time.Minute, b.nodes...)
				for step := 10 * time.Millisecond; time.Duration(b.trip.Load()) <
					trip; time.Sleep(2 * time.Second) {
					b.trip.Add(int64(step)) // so slowly that the leader is never lost
				}
				check := b.unmoved()
				b.fitted(want, time.Minute, b.nodes...)
				for _, n := range b.nodes {
					require.Equal(b, timeoutMin, n.runs.latest.Load().shortest)
				}
				time.Sleep(time.Minute)
				check()
				require.Equal(b, []time.Duration{want, want, want}, b.timeouts(b.nodes...))
				b.trip.Store(0)
				b.fitted(timeoutMin, 2*calm, b.nodes...)
				check()
			})
		})
	}
}

// Load makes some round trips longer, distance makes all of them so.
func TestLoadIsNoDistance(t *testing.T) {
	inBubbleSerially(t, nil, func(b *bubble) {
		b.fitted(timeoutMin, time.Minute, b.nodes...)
		check := b.unmoved()
		for i := range 600 {
			b.trip.Store(int64(time.Duration(i%8) * 13 * time.Millisecond))
			time.Sleep(103 * time.Millisecond)
		}
		check()
		require.Equal(b, []time.Duration{timeoutMin, timeoutMin, timeoutMin},
			b.timeouts(b.nodes...))
	})
}

// A leader gives up when no majority has answered it for twice its timeout, whatever raft was
// opened with.
func TestALeaderWithoutAMajorityGivesUp(t *testing.T) {
	t.Parallel()
	for _, timeout := range []time.Duration{timeoutMin, time.Second, timeoutMax} {
		t.Run(timeout.String(), func(t *testing.T) {
			inBubbleSerially(t, nil, func(b *bubble) {
				b.fitted(timeoutMin, time.Minute, b.nodes...)
				leader := b.leader(b.nodes...)
				for _, n := range b.nodes {
					n.timing.set(n.runs.latest.Load(), timeout)
				}
				time.Sleep(time.Second)
				others := b.others(leader)
				b.kill(others...)
				b.givesUp(leader, timeout)
				b.start(others...)
				b.leader(b.nodes...)
			})
		})
	}
}

// givesUp waits until a leader without answers gives up: a lease after the last one, which may be a
// tenth of a second old.
func (b *bubble) givesUp(leader *bubbleNode, timeout time.Duration) {
	began := time.Now()
	for leader.Status().Leading {
		time.Sleep(time.Millisecond)
	}
	require.InDelta(b, leaseFor(timeout), time.Since(began), float64(150*time.Millisecond))
}

// A burst of load, and one after it, moves the timeout up once. It stays until all has been calm
// for a while.
func TestABurstMovesTheTimeoutOnce(t *testing.T) {
	inBubbleHeld(t, func(b *bubble, clocks *held) {
		b.fitted(timeoutMin, time.Minute, b.nodes...)
		check := b.unmoved()
		var seen []time.Duration
		began := time.Now()
		for range 3 {
			end := clocks.stall(90 * time.Millisecond)
			for range 9 + 20 {
				if t := b.timeouts(b.nodes...); len(seen) == 0 || t[0] != seen[len(seen)-1] {
					seen = append(seen, t[0])
				}
				if time.Sleep(time.Second); time.Since(began)%(29*time.Second) >= 9*time.Second {
					end()
				}
			}
		}
		require.Equal(b, []time.Duration{timeoutMin, 500 * time.Millisecond}, seen)
		if !testing.Short() { // TestTheTimeoutsFollowTheDistance waits for that as well
			b.fitted(timeoutMin, 2*calm, b.nodes...)
		}
		check()
	})
}

// A node that has another timeout takes that of the others when it leads, and they theirs from no
// newcomer.
func TestANewLeaderKeepsTheTimeout(t *testing.T) {
	inBubbleHeld(t, func(b *bubble, clocks *held) {
		end := clocks.stall(190 * time.Millisecond)
		b.fitted(time.Second, time.Minute, b.nodes...)
		end()
		// until the stalls are forgotten, which would be a reason to lengthen it again
		time.Sleep(15 * time.Second)
		next := b.others(b.leader(b.nodes...))[0]
		next.timing.set(next.runs.latest.Load(), timeoutMin)
		require.NoError(b, b.leader(b.nodes...).Transfer(b.Context(), next.self.ID))
		for range 100 {
			for _, n := range b.others(next) {
				require.Equal(b, time.Second, n.timing.timeout())
			}
			time.Sleep(100 * time.Millisecond)
		}
		require.Equal(b, next, b.leader(b.nodes...))
		require.Equal(b, time.Second, next.timing.timeout())
	})
}

// A node that replays its log knows an old record of itself.
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
		run := n.runs.latest.Load()
		require.True(b, run.hasReplayed())
		n.state.applied.Store(run.raft.LastIndex() - joinLagMax - 1)
		require.False(b, run.hasReplayed())
		n.state.applied.Store(0) // raft has started, and replays nothing yet
		require.False(b, run.hasReplayed())
	})
}

// A pause of a machine, or of all nodes together, says nothing about where they are, however often
// it happens.
func TestAPauseIsNoReason(t *testing.T) {
	t.Parallel()
	for pause, every := range map[time.Duration]time.Duration{220 * time.Millisecond: time.Second,
		time.Hour: 31 * time.Second} {
		t.Run(pause.String(), func(t *testing.T) {
			inBubbleHeld(t, func(b *bubble, clocks *held) {
				check := b.unmoved()
				for range 20 {
					clocks.by.Add(int64(pause))
					time.Sleep(every)
				}
				check()
				require.Equal(b, []time.Duration{timeoutMin, timeoutMin, timeoutMin},
					b.timeouts(b.nodes...))
			})
		})
	}
}

// A node whose disk takes nothing runs with the new timeout, and one that was dead takes it when it
// is back; the others wait for neither.
func TestASickNodeKeepsNoOtherFromANewTimeout(t *testing.T) {
	t.Parallel()
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
				defer clocks.stall(90 * time.Millisecond)()
				b.fitted(500*time.Millisecond, time.Minute, leader, others[1])
				if others[0].disk.heal(); name == "dead" {
					b.start(others[0])
				} else {
					require.Equal(b, 500*time.Millisecond, others[0].timing.timeout())
				}
				b.fitted(500*time.Millisecond, time.Minute, b.nodes...)
			})
		})
	}
}

// A node that died with a longer timeout does not count, and takes that of the others when it is
// back.
func TestADeadNodeKeepsItsTimeoutToItself(t *testing.T) {
	inBubbleHeld(t, func(b *bubble, clocks *held) {
		end := clocks.stall(90 * time.Millisecond)
		b.fitted(500*time.Millisecond, time.Minute, b.nodes...)
		end()
		leader := b.leader(b.nodes...)
		dead, left := b.others(leader)[0], b.others(leader)[1]
		b.kill(dead)
		b.fitted(timeoutMin, 2*calm, leader, left)
		b.start(dead)
		require.Equal(b, 500*time.Millisecond, dead.timing.timeout())
		b.fitted(timeoutMin, 10*time.Second, b.nodes...)
	})
}

// What an operator has chosen is not changed by what is measured; of several values the longest
// holds for all.
func TestAChosenTimeoutStays(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		chosen [3]time.Duration
		want   time.Duration
	}{
		"one": {[3]time.Duration{300 * time.Millisecond, 300 * time.Millisecond,
			300 * time.Millisecond}, 300 * time.Millisecond},
		"different": {[3]time.Duration{300 * time.Millisecond, time.Second, 400 * time.Millisecond},
			time.Second},
		"at one": {[3]time.Duration{0, 700 * time.Millisecond, 0}, 700 * time.Millisecond},
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
				defer clocks.stall(90 * time.Millisecond)()
				b.fitted(test.want, 5*time.Minute, b.nodes...)
				term := b.leader(b.nodes...).Status().Term
				time.Sleep(10 * time.Minute)
				require.Equal(b, term, b.leader(b.nodes...).Status().Term,
					"the leadership does not wander")
				b.fitted(test.want, time.Second, b.nodes...)
			})
		})
	}
}

// A choice that is far below what the nodes run with is reached, also below what would be measured.
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
	for need, want := range map[time.Duration]time.Duration{
		0: timeoutMin, timeoutMin: timeoutMin, timeoutMin + 1: 500 * time.Millisecond,
		800 * time.Millisecond: time.Second, 1500 * time.Millisecond: 1500 * time.Millisecond,
		time.Hour: timeoutMax,
	} {
		assert.Equal(t, want, timeoutFor(need), need)
	}
}

// Each row is a case of chooseTimeout, with T at a second. needed: the time of calm begins anew.
func TestTheChoiceOfATimeout(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	for name, c := range map[string]struct {
		samples timeoutSamples
		want    time.Duration
		needed  bool
	}{
		"an operator's choice": {
			timeoutSamples{fixed: 3 * s, trip: time.Hour, led: calm}, 3 * s, false},
		"a new leader follows a majority": {timeoutSamples{led: calm - 1, ofMajority: 2 * s},
			2 * s, false},
		"an old one does not": {timeoutSamples{led: calm, ofMajority: 2 * s},
			s, false},
		"nor to a shorter one": {timeoutSamples{ofMajority: timeoutMin}, s, false},
		"it rises at once": {timeoutSamples{trip: 150 * ms, pause: 60 * ms},
			1250 * ms, true},
		"load counts half": {timeoutSamples{slow: 500 * ms}, 1250 * ms, true},
		"it is needed": {timeoutSamples{trip: 151 * ms, calm: time.Hour},
			s, true},
		"less is needed": {timeoutSamples{trip: 100 * ms, calm: calm - 1},
			s, false},
		"it falls when it has been calm": {timeoutSamples{trip: 100 * ms, calm: calm},
			750 * ms, false},
		"a shorter one needs calm as well": {timeoutSamples{calm: calm}, timeoutMin, false},
	} {
		c.samples.t, c.samples.others = s, 2
		got, _, needed := chooseTimeout(c.samples)
		assert.Equal(t, c.want, got, name)
		assert.Equal(t, c.needed, needed, name)
	}
	got, _, needed := chooseTimeout(timeoutSamples{t: s, pause: time.Hour, calm: calm})
	assert.Equal(t, s, got, "a single voter")
	assert.False(t, needed)
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
		0: ms(), 7: ms(7), 3: ms(90, 3), 9: ms(9, -1), 20: ms(80, 10, 20, 90),
		80: ms(-1, -1, 80, 9),
	} {
		assert.Equal(t, time.Duration(want)*time.Millisecond,
			quorumTrip(others, voter.distance), others)
	}
	assert.Zero(t, quorumTrip(ms(-1, -1), voter.distance))
	assert.Zero(t, quorumTrip(ms(-1, -1, -1, 9), voter.distance))
}

// inBubbleSerially is inBubble with another configuration; tune is called for one node at a time.
func inBubbleSerially(t *testing.T, tune func(*Config), test func(*bubble)) {
	var mu sync.Mutex
	inBubbleTuned(t, func(c *Config) {
		mu.Lock()
		defer mu.Unlock()
		if tune != nil {
			tune(c)
		}
	}, test)
}
