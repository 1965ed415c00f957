package raftnode

import (
	"context"
	"encoding/binary"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/fsm"
	"zamok/raftnode/peer"
	"zamok/session"
)

const (
	// outageMax is how long service may be interrupted by a leader that makes no progress: then no
	// lock of ttl 10 s is lost.
	outageMax = 5 * time.Second
	entryMax  = 4 << 10 // more than passes a black hole
)

// work submits commands, again and again, to the node that leads.
type work struct {
	end     func()
	since   atomic.Pointer[time.Time] // when the latest answer came
	longest atomic.Int64              // time without an answer, in ns
}

// outage is the longest time without an answer, so far.
func (w *work) outage() time.Duration {
	return max(time.Duration(w.longest.Load()), time.Since(*w.since.Load()))
}

func (b *bubble) work(parallel, bytes int) *work {
	ctx, cancel := context.WithCancel(b.Context())
	w, serial := &work{}, atomic.Uint64{}
	w.since.Store(new(time.Now()))
	var running sync.WaitGroup
	for range parallel {
		running.Go(func() {
			for ctx.Err() == nil {
				for _, n := range b.nodes {
					if n.Status().Leading {
						bounded, done := context.WithTimeout(ctx, 500*time.Millisecond)
						if _, err := n.Propose(bounded,
							b.opening(serial.Add(1), bytes)); err == nil {
							before := w.since.Swap(new(time.Now()))
							w.longest.Store(max(w.longest.Load(), int64(time.Since(*before))))
						}
						done()
					}
				}
				time.Sleep(100 * time.Millisecond)
			}
		})
	}
	w.end = func() {
		cancel()
		running.Wait()
	}
	return w
}

// opening is a command of so many bytes.
func (b *bubble) opening(serial uint64, bytes int) fsm.Command {
	c := &fsm.OpenSession{Settings: session.Settings{TTL: fsm.TTLMin,
		Meta: strings.Repeat("m", bytes)}}
	binary.LittleEndian.PutUint64(c.Secret[:], serial)
	return c
}

// outcomes are those of the progress rule at all nodes.
func (b *bubble) outcomes() (all []string) {
	for _, n := range b.nodes {
		n.mu.Lock()
		all = append(all, n.outcomes...)
		n.mu.Unlock()
	}
	return all
}

func (b *bubble) moved() (times int) {
	for _, outcome := range b.outcomes() {
		if outcome == Moved {
			times++
		}
	}
	return times
}

// A leader whose disk gets slow, or whose large messages are lost, hands over, and service
// continues.
func TestALeaderWithoutProgressGivesWay(t *testing.T) {
	t.Parallel()
	for name, ail := range map[string]func(*bubbleNode){
		"flushes take 1 s longer": func(n *bubbleNode) {
			n.disk.slower.Store(int64(time.Second))
		},
		"flushes take 2 s longer": func(n *bubbleNode) {
			n.disk.slower.Store(int64(2 * time.Second))
		},
		"flushes take half a second": func(n *bubbleNode) {
			n.disk.slower.Store(int64(time.Second / 2))
		},
		"the disk hangs": func(n *bubbleNode) { n.disk.hang() },
		"a black hole":   func(n *bubbleNode) { n.door.blackHole.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				time.Sleep(watchdogArmed)
				w := b.work(2, entryMax)
				time.Sleep(time.Second)
				ails := b.leader(b.nodes...)
				ail(ails)
				began := time.Now()
				b.leader(b.others(ails)...)
				took := time.Since(began)
				time.Sleep(5 * time.Second)
				w.end()
				b.Logf("another leads after %v; nothing was answered for %v", took, w.outage())
				assert.LessOrEqual(b, took, outageMax)
				assert.LessOrEqual(b, w.outage(), outageMax)
				assert.Equal(b, []string{Moved}, b.outcomes())
				assert.Empty(b, ails.ended, "the watchdog is the last resort")
				assert.False(b, ails.Status().Leading)
			})
		})
	}
}

// Where another leader would do no better, the leader stays.
func TestALeaderThatOthersCannotReplaceStays(t *testing.T) {
	t.Parallel()
	slow := func(n *bubbleNode) { n.disk.slower.Store(int64(2 * time.Second)) }
	for name, ail := range map[string]func(b *bubble, leader *bubbleNode){
		"one node is dead": func(b *bubble, leader *bubbleNode) {
			b.kill(b.others(leader)[0])
			time.Sleep(2 * time.Second)
			slow(leader)
		},
		"all disks are slow": func(b *bubble, _ *bubbleNode) {
			for _, n := range b.nodes {
				slow(n)
			}
		},
		"one more disk is slow": func(b *bubble, leader *bubbleNode) {
			slow(b.others(leader)[0])
			time.Sleep(2 * time.Second)
			slow(leader)
		},
		"the disks of the others are full": func(b *bubble, leader *bubbleNode) {
			for _, n := range b.others(leader) {
				require.NoError(b, n.disk.become("full"))
			}
		},
		"one more node gets nothing through": func(b *bubble, leader *bubbleNode) {
			b.others(leader)[0].disk.hang()
			time.Sleep(2 * time.Second)
			leader.door.blackHole.Store(true)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				time.Sleep(watchdogArmed)
				w := b.work(2, entryMax)
				time.Sleep(time.Second)
				leader := b.leader(b.nodes...)
				term := leader.Status().Term
				ail(b, leader)
				time.Sleep(6 * outageMax)
				assert.True(b, leader.Status().Leading)
				assert.Equal(b, term, leader.Status().Term)
				outcomes := b.outcomes()
				assert.NotEmpty(b, outcomes)
				assert.NotContains(b, outcomes, Moved)
				assert.Contains(b, outcomes, StayedWithoutMajority)
				w.end()
				if name == "one node is dead" {
					b.start(b.others(leader)[0])
				}
				for _, n := range b.nodes {
					n.disk.heal()
					n.door.blackHole.Store(false)
				}
			})
		})
	}
}

// Of two large entries in flight the second may take what both take on a slow line, also when the
// first is committed.
func TestAnEntryMayTakeWhatIsBeforeItOnTheLine(t *testing.T) {
	t.Parallel()
	ps := &proposals{byBytes: map[*byte]*proposal{}}
	now := time.Now()
	for i, size := range []int{100, 50, 70} {
		at := now.Add(time.Duration(i) * time.Second)
		ps.add(&proposal{bytes: make([]byte, size), sent: at, index: uint64(i + 1)})
		oldest, waiting := ps.uncommitted(uint64(i))
		assert.Equal(t, at, oldest)
		assert.Equal(t, []int{100, 150, 220}[i], waiting)
	}
	_, waiting := ps.uncommitted(3)
	assert.Zero(t, waiting)
}

// What is large, or much, or slow everywhere, is no fault of the leader.
func TestALeaderThatIsBusyStays(t *testing.T) {
	t.Parallel()
	for name, keepBusy := range map[string]func(b *bubble, leader *bubbleNode){
		"more is submitted than entries take": func(b *bubble, _ *bubbleNode) {
			for _, n := range b.nodes {
				n.disk.slower.Store(int64(90 * time.Millisecond))
			}
			w := b.work(150, entryMax)
			time.Sleep(10 * time.Second)
			w.end()
		},
		"an entry that a slow line takes seconds for": func(b *bubble, leader *bubbleNode) {
			leader.door.bytesPerSecond.Store(64 << 10)
			for range 3 {
				var answered sync.WaitGroup
				for i := range uint64(80) {
					answered.Add(1)
					leader.Submit(b.Context(), b.opening(i, entryMax),
						func(Answer, error) { answered.Done() })
				}
				began := time.Now()
				answered.Wait()
				require.Greater(b, time.Since(began), 3*time.Second,
					"longer than a small entry may take")
			}
			leader.door.bytesPerSecond.Store(0)
		},
		"nodes far apart": func(b *bubble, _ *bubbleNode) {
			b.trip.Store(int64(200 * time.Millisecond))
			w := b.work(2, entryMax)
			time.Sleep(10 * time.Second)
			w.end()
		},
		"single slow writes": func(b *bubble, leader *bubbleNode) {
			w := b.work(2, entryMax)
			for range 4 {
				leader.disk.slowOnce.Store(int64(1500 * time.Millisecond))
				time.Sleep(progressWindow + time.Second)
			}
			w.end()
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				time.Sleep(watchdogArmed)
				keepBusy(b, b.leader(b.nodes...))
				assert.Empty(b, b.outcomes())
			})
		})
	}
}

// If disks get slow in turn, always that of the leader, the leadership moves once a minute at most.
func TestLeadersGiveWayOnceAMinute(t *testing.T) {
	inBubble(t, func(b *bubble) {
		time.Sleep(watchdogArmed)
		w := b.work(2, entryMax)
		defer w.end()
		began, minutes := time.Now(), 5
		for time.Since(began) < time.Duration(minutes)*moveInterval {
			for _, n := range b.nodes {
				slower := time.Duration(0)
				if n.Status().Leading {
					slower = time.Second
				}
				n.disk.slower.Store(int64(slower))
			}
			time.Sleep(100 * time.Millisecond)
		}
		assert.LessOrEqual(b, b.moved(), minutes+1)
		assert.GreaterOrEqual(b, b.moved(), minutes-1)
		assert.Contains(b, b.outcomes(), StayedRecent)
	})
}

// Who gave way does not campaign while another may lead, and does when none does.
func TestWhoGaveWayLetsOthersLead(t *testing.T) {
	inBubble(t, func(b *bubble) {
		time.Sleep(watchdogArmed)
		w := b.work(2, entryMax)
		slow := b.leader(b.nodes...)
		slow.disk.slower.Store(int64(time.Second))
		next := b.leader(b.others(slow)...)
		slow.disk.heal()
		w.end()
		for range 6 { // all within a minute
			time.Sleep(2 * time.Second)
			third := slices.DeleteFunc(b.others(slow),
				func(n *bubbleNode) bool { return n == next })[0]
			b.kill(next)
			require.Equal(b, third.self.ID, b.leader(slow, third).self.ID)
			b.start(next)
			next = third
		}
		b.kill(b.others(slow)...)
		b.start(b.others(slow)[0])
		b.others(slow)[0].progress.moves.begin(time.Now()) // then none comes first
		b.leader(b.others(b.others(slow)[1])...)
		b.start(b.others(slow)[1])
	})
}

// While the members are being changed the leader stays: the outcome of the change would be unknown.
func TestALeaderWithoutProgressWaitsForAChangeOfTheMembers(t *testing.T) {
	inBubble(t, func(b *bubble) {
		time.Sleep(watchdogArmed)
		w := b.work(2, entryMax)
		slow := b.leader(b.nodes...)
		done, err := slow.changes.begin(b.Context())
		require.NoError(b, err)
		slow.disk.slower.Store(int64(time.Second))
		time.Sleep(2 * outageMax)
		require.True(b, slow.Status().Leading)
		assert.Equal(b, []string{StayedMembers}, b.outcomes())
		done()
		b.leader(b.others(slow)...)
		w.end()
	})
}

// The leadership goes to the voter that acknowledges soonest, and to none whose disk is nearly
// full.
func TestTheLeadershipGoesToTheQuickest(t *testing.T) {
	t.Parallel()
	for name, low := range map[string]bool{"it has room": false, "its disk is low": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				time.Sleep(watchdogArmed)
				slow := b.leader(b.nodes...)
				others := b.others(slow)
				others[0].disk.slower.Store(int64(20 * time.Millisecond))
				if low {
					require.NoError(b, others[1].disk.become("low"))
					time.Sleep(3 * maintenanceTick)
				}
				w := b.work(2, entryMax)
				time.Sleep(time.Second)
				slow.disk.slower.Store(int64(time.Second))
				want := others[1].self.ID
				if low {
					want = others[0].self.ID
				}
				slow.diary.new()
				b.leader(others...)
				assert.Contains(b, strings.Join(slow.diary.new(), ""), "to="+want,
					"though the transfer need not end in time")
				w.end()
			})
		})
	}
}

func TestWritesOfLate(t *testing.T) {
	var w writes
	now := time.Now()
	quickest, slowest := w.recent(now)
	assert.Zero(t, quickest)
	assert.Zero(t, slowest)
	w.add(3 * time.Second)
	w.add(time.Second)
	quickest, slowest = w.recent(time.Now())
	assert.Zero(t, quickest, "too few")
	assert.Equal(t, 3*time.Second, slowest)
	w.add(2 * time.Second)
	quickest, slowest = w.recent(time.Now())
	assert.Equal(t, time.Second, quickest)
	assert.Equal(t, 3*time.Second, slowest)
	quickest, slowest = w.recent(time.Now().Add(progressWindow + time.Second))
	assert.Zero(t, quickest)
	assert.Zero(t, slowest, "forgotten")
}

// A leader gave way a moment ago, and says so in each answer to a heartbeat. The next one, whose
// disk is nearly full, heeds that.
func TestALeaderWithALowDiskHeedsTheLatestMove(t *testing.T) {
	inBubble(t, func(b *bubble) {
		leader := b.leader(b.nodes...)
		b.write(leader, 3)
		b.others(leader)[0].progress.moves.begin(time.Now()) // it led before, and gave way
		for range 8 {
			time.Sleep(time.Second)
			b.write(leader, 1)
		}
		run := leader.runs.latest.Load()
		require.Equal(b, StayedRecent,
			leader.progress.giveWay(b.Context(), run, leader.handover.successor, "cause",
				"its disk is nearly full"))
	})
}

// Each row is what a leader and the other four voters write in, and why it should give way, to how
// many of them.
func TestAStandstill(t *testing.T) {
	const ms = time.Millisecond
	cases := []struct {
		own    time.Duration
		others []time.Duration // < 0 = it does not respond
		slow   bool            // its writes are, if that lasts
		able   int             // if they are slow, or entries are late
	}{
		{slowWriteMin, []time.Duration{20 * ms, 20 * ms, 20 * ms, 21 * ms}, true, 3},
		{slowWriteMin, []time.Duration{20 * ms, 20 * ms, 21 * ms, 21 * ms}, false, 4},
		{slowWriteMin, []time.Duration{20 * ms, 20 * ms, -1, -1}, false, 2},
		{slowWriteMin - 1, []time.Duration{1, 1, 1, 1}, false, 4},
		{2 * time.Second, []time.Duration{200 * ms, 201 * ms, 100 * ms, 199 * ms}, true, 3},
		{0, []time.Duration{100 * ms, 101 * ms, 1, -1}, false, 2},
	}
	for i, c := range cases {
		var others []voter
		for _, write := range c.others {
			v := voter{status: peer.HeartbeatStatus{At: time.Now(), Write: write}}
			if write < 0 {
				v.status.Write, v.silent = 0, time.Second
			}
			others = append(others, v)
		}
		assert.Equal(t, c.slow, writesSlowly(c.own, others, 5), i)
		cause, able := standstill(c.slow, true, c.own, others)
		assert.Equal(t, c.slow, strings.Contains(cause, "writes"), "%d: %s", i, cause)
		assert.Len(t, able, c.able, i)
		cause, _ = standstill(false, false, c.own, others)
		assert.Empty(t, cause, i)
	}
}
