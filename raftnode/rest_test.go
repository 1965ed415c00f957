package raftnode

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestAClusterAtRestIsQuiet: its leader sends each follower a heartbeat every 50 to 100 ms, and little else. The others send
// nothing that is not an answer.
func TestAClusterAtRestIsQuiet(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		leader := b.leader(b.nodes...)
		require.NoError(b, b.fence(leader))
		time.Sleep(3 * maintenanceTick) // until the nodes are announced: nothing else is proposed afterwards
		var before [3]int64
		for i, n := range b.nodes {
			before[i] = n.door.messages.Load()
		}
		const seconds = 20
		time.Sleep(seconds * time.Second)
		for i, n := range b.nodes {
			switch sent := n.door.messages.Load() - before[i]; n {
			case leader:
				require.GreaterOrEqual(b, sent, int64(2*seconds*10))
				require.LessOrEqual(b, sent, int64(2*seconds*(20+1+1)))
			default:
				require.LessOrEqual(b, sent, int64(seconds))
			}
		}
	})
}

// TestAFollowerHearsWhatIsCommitted, also if it begins anew while nothing is proposed, and the leader has told it before.
func TestAFollowerHearsWhatIsCommitted(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		leader := b.leader(b.nodes...)
		require.NoError(b, b.fence(leader))
		time.Sleep(3 * maintenanceTick)
		n := b.others(leader)[0]
		committed := leader.Status().Applied.Index
		require.Equal(b, committed, n.Status().Applied.Index)
		for range 10 {
			b.kill(n)
			b.start(n)
			began := time.Now()
			for n.Status().Applied.Index < committed {
				time.Sleep(time.Millisecond)
			}
			require.Less(b, time.Since(began), 400*time.Millisecond)
		}
	})
}

// TestALeaderWithoutAnswersGivesUp: also when no connection breaks, and nothing that it sends is new.
func TestALeaderWithoutAnswersGivesUp(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		leader := b.leader(b.nodes...)
		require.NoError(b, b.fence(leader))
		time.Sleep(3*maintenanceTick + 300*time.Millisecond)
		b.trip.Store(int64(5 * time.Second))
		began := time.Now()
		for leader.Status().Leading {
			time.Sleep(time.Millisecond)
		}
		require.InDelta(b, leaseFor(timeoutMin), time.Since(began), float64(100*time.Millisecond))
		b.trip.Store(0)
		b.leader(b.nodes...)
	})
}
