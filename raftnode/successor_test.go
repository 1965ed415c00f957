package raftnode

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/fsm"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

// lowered makes disks nearly full, and waits until that is announced and acted upon.
func (b *bubble) lowered(nodes ...*bubbleNode) {
	for _, n := range nodes {
		require.NoError(b, n.disk.become("low"))
	}
	time.Sleep(giveWayAfter + 3*maintenanceTick)
}

// A transfer without a target goes to a node that has room, not the first of the list.
func TestTheLeadershipGoesWhereThereIsRoom(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*bubble, *bubbleNode) error{
		"transfer":     func(b *bubble, n *bubbleNode) error { return n.Transfer(b.Context(), "") },
		"orderly stop": func(_ *bubble, n *bubbleNode) error { return n.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				leader := b.leader(b.nodes...)
				others := b.others(leader)
				b.lowered(others[0])
				require.NoError(b, leave(b, leader))
				require.Equal(b, others[1].self.ID, b.leader(others...).self.ID)
				if name == "orderly stop" {
					b.start(leader)
				}
			})
		})
	}
}

// A node whose process was restarted has its log at once, and can lead only when it has replayed
// that.
func TestTheLeadershipGoesToNoNodeThatReplays(t *testing.T) {
	inBubble(t, func(b *bubble) {
		for range 2 * joinLagMax {
			require.NoError(b, b.fence(b.leader(b.nodes...)))
		}
		leader := b.leader(b.nodes...)
		others := b.others(leader)
		time.Sleep(10 * time.Second)
		// as after its start, until it applies the next entry
		replays := func(n *bubbleNode) { n.state.applied.Store(1) }
		replays(others[0])
		replays(others[1])
		err := leader.Transfer(b.Context(), "")
		require.ErrorIs(b, err, ErrRefused)
		require.ErrorContains(b, err, others[0].self.ID+" replays its log: it has applied 1 of 2")
		require.ErrorContains(b, err, others[1].self.ID+" replays its log")
		require.NoError(b, b.fence(leader))
		time.Sleep(time.Second)
		replays(others[0])
		require.NoError(b, leader.Transfer(b.Context(), ""))
		require.Equal(b, others[1].self.ID, b.leader(b.nodes...).self.ID)
	})
}

// If all others are unhealthy a transfer without a name is refused, and says why of each; a name is
// obeyed, and a leader that stops takes what there is.
func TestWithoutAHealthyNodeATransferNamesOne(t *testing.T) {
	inBubble(t, func(b *bubble) {
		leader := b.leader(b.nodes...)
		others := b.others(leader)
		require.NoError(b, others[0].disk.become("low"))
		b.kill(others[1])
		time.Sleep(10 * time.Second)
		err := leader.Transfer(b.Context(), "")
		require.ErrorIs(b, err, ErrRefused)
		require.ErrorContains(b, err, others[0].self.ID+" has a disk that is nearly full")
		require.ErrorContains(b, err, others[1].self.ID+" has not answered")
		require.True(b, leader.Status().Leading, "it still leads")
		require.NoError(b, leader.Transfer(b.Context(), others[0].self.ID))
		require.Equal(b, others[0].self.ID, b.leader(leader, others[0]).self.ID)
		b.lowered(leader)
		require.NoError(b, others[0].Close())
		b.start(others...)
		b.leader(b.nodes...)
	})
}

// A leader whose disk is nearly full hands over to a node with room, once, and stays away.
func TestALeaderWithALowDiskHandsOver(t *testing.T) {
	inBubble(t, func(b *bubble) {
		low := b.leader(b.nodes...)
		others := b.others(low)
		b.lowered(low)
		require.False(b, low.Status().Leading)
		next := b.leader(others...)
		term := next.Status().Term

		// The next one's disk gets low, too: only the third has room, and a majority has none.
		b.lowered(next)
		time.Sleep(moveInterval + giveWayAfter)
		require.Equal(b, term, next.Status().Term, "nothing is won by another leader")

		// The first has room again: the second gives way, once.
		low.disk.heal()
		time.Sleep(giveWayAfter)
		last := b.leader(b.nodes...)
		require.NotEqual(b, next.self.ID, last.self.ID)
		term = last.Status().Term
		time.Sleep(moveInterval + giveWayAfter)
		require.Equal(b, term, last.Status().Term)

		b.lowered(b.others(last)...)
		b.lowered(last)
		time.Sleep(moveInterval + giveWayAfter)
		require.Equal(b, term, last.Status().Term, "no node is better")
	})
}

// A leader whose disk gets low again and again hands over once a minute at most.
func TestHandingOverIsRare(t *testing.T) {
	inBubble(t, func(b *bubble) {
		first := b.leader(b.nodes...)
		b.lowered(first)
		next := b.leader(b.others(first)...)
		began := time.Now()
		first.disk.heal()
		time.Sleep(3 * maintenanceTick)
		require.NoError(b, next.Transfer(b.Context(), first.self.ID))
		require.Equal(b, first.self.ID, b.leader(b.nodes...).self.ID)
		b.lowered(first)
		require.True(b, first.Status().Leading)
		for first.Status().Leading {
			time.Sleep(maintenanceTick)
			require.Less(b, time.Since(began), 2*time.Minute)
		}
		require.Greater(b, time.Since(began), time.Minute-5*maintenanceTick)
	})
}

// A leader whose disk gets low while the members are being changed hands over as soon as that
// change has ended.
func TestALeaderWithALowDiskWaitsForAChangeOfTheMembers(t *testing.T) {
	inBubble(t, func(b *bubble) {
		low := b.leader(b.nodes...)
		done, err := low.changes.begin(b.Context())
		require.NoError(b, err)
		b.lowered(low)
		require.True(b, low.Status().Leading, "the outcome of the change would be unknown")
		done()
		time.Sleep(5 * maintenanceTick)
		require.False(b, low.Status().Leading)
		b.leader(b.nodes...)
	})
}

// New things are refused when the voters that answer and have room are no majority, and by the
// leader only.
func TestRoomIsAMajoritysMatter(t *testing.T) {
	inBubble(t, func(b *bubble) {
		leader := b.leader(b.nodes...)
		others := b.others(leader)
		b.lowered(others[0])
		require.Empty(b, leader.NoRoom())
		b.lowered(others[1])
		require.Contains(b, leader.NoRoom(), others[0].self.ID)
		require.Empty(b, others[0].NoRoom(), "a follower does not judge")
		others[1].disk.heal()
		time.Sleep(3 * maintenanceTick)
		require.Empty(b, leader.NoRoom())

		b.kill(others[1])
		time.Sleep(10 * time.Second)
		require.Contains(b, leader.NoRoom(), others[1].self.ID,
			"entries go only with the one that has no room")
		others[0].disk.heal()
		time.Sleep(3 * maintenanceTick)
		require.Empty(b, leader.NoRoom(), "no disk is low")
		b.start(others[1])
	})
}

// A node whose log takes no entries says so, until it takes one again.
func TestARefusedAppendShows(t *testing.T) {
	inBubble(t, func(b *bubble) {
		leader := b.leader(b.nodes...)
		full := b.others(leader)[0]
		require.Empty(b, full.Status().Refusing)
		// with the second there is room until an entry comes
		for _, free := range []uint64{0, store.DefaultReservedSpace} {
			full.disk.free.Store(free)
			require.NoError(b, b.fence(leader))
			time.Sleep(time.Second)
			require.Contains(b, full.Status().Refusing, "make room")
			require.Empty(b, leader.Status().Refusing)
		}
		full.disk.heal()
		time.Sleep(5 * time.Second)
		require.NoError(b, b.fence(leader))
		time.Sleep(time.Second)
		require.Empty(b, full.Status().Refusing)
	})
}

// Voters are named after what they are; the last index is 1000.
func TestTheChoiceOfASuccessor(t *testing.T) {
	named := func(name string, v voter) voter {
		v.Server = raft.Server{ID: peer.Server{Name: name}.ID()}
		return v
	}
	silent := named("silent", voter{acknowledged: 1000, silent: time.Minute})
	full := named("full", voter{acknowledged: 1000, announced: fsm.Member{LowSpaceThreshold: 1}})
	far := named("far", voter{acknowledged: 1000 - joinLagMax - 1})
	near, equal := named("near", voter{acknowledged: 1000 - joinLagMax}),
		named("equal", voter{acknowledged: 1000})
	unready := map[raft.ServerID]string{equal.ID: "replays its log"}
	longest := func(v, than voter) bool { return v.acknowledged > than.acknowledged }
	choose := func(unready map[raft.ServerID]string, voters ...voter) (string, error) {
		able, against := fit(voters, 1000)
		to, err := chooseSuccessor(able, against, unready, longest)
		return peer.NameOf(to.ID), err
	}

	to, err := choose(nil, silent, full, far, near, equal)
	require.NoError(t, err)
	assert.Equal(t, "equal", to)
	to, err = choose(unready, silent, full, far, near, equal)
	require.NoError(t, err)
	assert.Equal(t, "near", to)
	_, err = choose(unready, silent, full, far, equal)
	require.ErrorIs(t, err, ErrRefused)
	for _, reason := range []string{"silent has not", "full has a disk", "far is far behind",
		"equal replays"} {
		assert.ErrorContains(t, err, reason)
	}
	_, err = choose(nil)
	require.ErrorContains(t, err, "only voter")
}
