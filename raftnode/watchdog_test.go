package raftnode

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/raftnode/store"
)

// watchdogArmed is how long a process must run before its watchdog may end it.
const watchdogArmed = watchdogInterval + time.Second

// noMoves has no leader give way by itself, so that the watchdog is what is left.
func (b *bubble) noMoves() {
	for _, n := range b.nodes {
		n.progress.moves.heard(time.Now().Add(time.Hour))
	}
}

// A leader whose disk hangs stays leader: its heartbeats continue. So it ends its own process,
// within five seconds and a little, and another leads.
func TestALeaderWhoseDiskHangsMakesRoom(t *testing.T) {
	inBubble(t, func(b *bubble) {
		time.Sleep(watchdogArmed)
		b.noMoves()
		stuck := b.leader(b.nodes...)
		stuck.disk.hang()
		began := time.Now()
		require.ErrorIs(b, b.fence(stuck), ErrUnknown)
		assert.Equal(b, stuck.self.ID, stuck.Status().Leader, "raft itself sees nothing wrong")
		err := b.ends(stuck)
		require.ErrorIs(b, err, ErrStuck)
		took := time.Since(began)
		b.Logf("after %v: %v", took, err)
		require.LessOrEqual(b, took, writeMax+writeSpread+2*watchTick)
		next := b.leader(b.others(stuck)...)
		require.NoError(b, b.fence(next))
		require.Less(b, time.Since(began)-took, 2*time.Second)
	})
}

// A process that stood still as a whole is no leader with a hanging disk: what was continuing when
// it stopped is given its time anew.
func TestAStandstillIsNoHangingDisk(t *testing.T) {
	inBubble(t, func(b *bubble) {
		time.Sleep(watchdogArmed)
		leader := b.leader(b.nodes...)
		run := leader.runs.latest.Load()
		leader.disk.hang()
		defer leader.disk.heal()
		require.ErrorIs(b, b.fence(leader), ErrUnknown)

		const stop = time.Minute
		awake := awakeTracker{looked: time.Now()}
		tick := time.Now().Add(stop) // the first after the standstill
		awake.observe(tick)
		limit := writeLimit(leader.Node.cfg.ID)
		require.NoError(b, leader.watchdog.sample(run, tick).stuck(awake, tick, limit))
		for range (writeMax + writeSpread) / watchTick {
			tick = tick.Add(watchTick)
			awake.observe(tick)
		}
		tick = tick.Add(watchTick)
		err := leader.watchdog.sample(run, tick).stuck(awake, tick, limit)
		require.ErrorIs(b, err, ErrStuck, "its disk hangs after all")
	})
}

// Nodes that share a slow disk have names like these: with one limit, each leader in turn would end
// at the same age of the same stall.
func TestNodesOfOneDiskHaveDifferentWriteLimits(t *testing.T) {
	var limits []time.Duration
	for i := range 9 {
		limits = append(limits, writeLimit(fmt.Sprint("n", i+1)))
	}
	assert.Greater(t, slices.Max(limits)-slices.Min(limits), writeSpread/2, limits)
	assert.GreaterOrEqual(t, slices.Min(limits), writeMax)
	assert.Less(t, slices.Max(limits), writeMax+writeSpread)
}

// A process that has just started is not ended again at once: a sick machine would restart in
// circles.
func TestAYoungLeaderIsNotEnded(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.noMoves()
		stuck := b.leader(b.nodes...)
		stuck.disk.hang()
		began := time.Now()
		require.ErrorIs(b, b.fence(stuck), ErrUnknown)
		require.ErrorIs(b, b.ends(stuck), ErrStuck)
		require.GreaterOrEqual(b, time.Since(began), watchdogInterval-10*time.Second)
		require.Less(b, time.Since(began), watchdogInterval)
	})
}

// A follower whose disk hangs does no harm, and its end would not help.
func TestAFollowerWhoseDiskHangsStays(t *testing.T) {
	inBubble(t, func(b *bubble) {
		time.Sleep(watchdogArmed)
		leader := b.leader(b.nodes...)
		hangs := b.others(leader)[0]
		hangs.disk.hang()
		for range 60 {
			require.NoError(b, b.fence(leader))
			time.Sleep(time.Second)
		}
		require.Empty(b, hangs.ended)
	})
}

// A leader that gets no majority because the others' disks are full or hang is itself well: were it
// to end, it would be missing when they are well again.
func TestALeaderThatWaitsForOthersStays(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"full", "stalling"} {
		t.Run(how, func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				time.Sleep(watchdogArmed)
				leader := b.leader(b.nodes...)
				for _, n := range b.others(leader) {
					require.NoError(b, n.disk.become(how))
				}
				require.ErrorIs(b, b.fence(leader), ErrUnknown)
				time.Sleep(2 * time.Minute)
				for _, n := range b.nodes {
					require.Empty(b, n.ended)
					n.disk.heal()
				}
				time.Sleep(2 * time.Second)
				require.NoError(b, b.fence(b.leader(b.nodes...)))
			})
		})
	}
}

// The leader can't be given its own leadership.
func TestATransferToTheLeaderIsRefused(t *testing.T) {
	inBubble(t, func(b *bubble) {
		leader := b.leader(b.nodes...)
		err := leader.Transfer(b.Context(), leader.cfg.ID)
		require.ErrorIs(b, err, ErrRefused)
		require.ErrorContains(b, err, "leads already; nothing was changed")
		require.Same(b, leader, b.leader(b.nodes...))
	})
}

// Who was ended by its watchdog does not campaign at once when it is back: its disk may hang still.
// But without a leader it does, later.
func TestWhoWasStuckLetsOthersLead(t *testing.T) {
	inBubble(t, func(b *bubble) {
		healthy := b.nodes[1]
		for range 5 {
			b.kill(b.nodes...)
			for _, n := range b.others(healthy) {
				n.watchdog.writeStuckFile(ErrStuck)
			}
			b.start(b.nodes...)
			require.Same(b, healthy, b.leader(b.nodes...))
			time.Sleep(2 * cautious)
			require.True(b, healthy.Status().Leading)
		}
		b.kill(b.nodes...)
		for _, n := range b.nodes {
			n.watchdog.writeStuckFile(ErrStuck)
		}
		began := time.Now()
		b.start(b.nodes...)
		b.leader(b.nodes...)
		b.Logf("an epoch opens after %v", time.Since(began))
		require.Greater(b, time.Since(began), cautious-maintenanceTick)
		require.Less(b, time.Since(began), 3*cautious)
	})
}

// The watchdog looks at a run of raft that has ended until the next one begins. It must not count
// as one whose epoch stays closed.
func TestAnEndedRunDoesNotLead(t *testing.T) {
	inBubble(t, func(b *bubble) {
		leader := b.leader(b.nodes...)
		run := leader.runs.latest.Load()
		require.False(b, run.ledSince().IsZero())
		require.NoError(b, run.stop())
		require.True(b, run.ledSince().IsZero())
	})
}

// Each row is a case of stallSamples.stuck: what stalls a leader, and what does not.
func TestWhatStallsALeader(t *testing.T) {
	const limit = 4 * time.Second
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	proposal := func(since time.Time) func() time.Time { return func() time.Time { return since } }
	none := proposal(time.Time{})
	for name, c := range map[string]struct {
		samples stallSamples
		want    string // "" = it does not stall
	}{
		"nothing": {stallSamples{proposal: none}, ""},
		"a slow write": {
			stallSamples{write: store.InProgress{Since: ago(limit)}, proposal: none}, ""},
		"a write that hangs": {stallSamples{write: store.InProgress{Since: ago(limit + 1)}},
			"a write"},
		"a slow opening": {stallSamples{opening: ago(epochMax), proposal: none}, ""},
		"no opening": {stallSamples{opening: ago(epochMax + 1)},
			"its epoch did not open"},
		"a slow proposal":       {stallSamples{proposal: proposal(ago(loopMax))}, ""},
		"a proposal that hangs": {stallSamples{proposal: proposal(ago(loopMax + 1))}, "local I/O"},
	} {
		err := c.samples.stuck(awakeTracker{}, now, limit)
		if c.want == "" {
			assert.NoError(t, err, name)
			continue
		}
		assert.ErrorIs(t, err, ErrStuck, name)
		assert.ErrorContains(t, err, c.want, name)
		if c.samples.proposal == nil {
			c.samples.proposal = none
		}
		err = c.samples.stuck(awakeTracker{since: ago(limit)}, now, limit)
		assert.NoError(t, err, "%s, in a process that stood still", name)
	}
}
