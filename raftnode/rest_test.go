package raftnode

import (
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// TestAClusterAtRestIsQuiet: its leader sends each follower a heartbeat every 50 to 100 ms, and
// once a second what it knows already. The others send next to nothing but answers.
func TestAClusterAtRestIsQuiet(t *testing.T) {
	inBubble(t, func(b *bubble) {
		leader := b.quietLeader()
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

// TestAFollowerHearsWhatIsCommitted, also if it begins anew while nothing is proposed.
func TestAFollowerHearsWhatIsCommitted(t *testing.T) {
	inBubble(t, func(b *bubble) {
		leader := b.quietLeader()
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

// TestALeaderWithoutAnswersGivesUp: also when no connection breaks, and nothing that it sends is
// new.
func TestALeaderWithoutAnswersGivesUp(t *testing.T) {
	inBubble(t, func(b *bubble) {
		leader := b.quietLeader()
		time.Sleep(300 * time.Millisecond) // until it has sent what it knows
		b.trip.Store(int64(5 * time.Second))
		b.givesUp(leader, timeoutMin)
		b.trip.Store(0)
		b.leader(b.nodes...)
	})
}

// TestALeaderHearsOfALaterTermAtRest: from the answers to what it sends, if no call reaches it.
func TestALeaderHearsOfALaterTermAtRest(t *testing.T) {
	inBubble(t, func(b *bubble) {
		for range 5 {
			leader := b.quietLeader()
			time.Sleep(300 * time.Millisecond) // until it has sent what it knows
			run, next, voter := leader.runs.latest.Load(), b.others(leader)[0], b.others(leader)[1]
			leader.door.deaf.Store(true)
			from := raft.RPCHeader{ProtocolVersion: 3, ID: []byte(voter.Node.self.ID()),
				Addr: []byte(voter.self.Address)}
			require.NoError(b, voter.runs.latest.Load().transport.TimeoutNow(next.Node.self.ID(),
				raft.ServerAddress(next.self.Address),
				&raft.TimeoutNowRequest{RPCHeader: from}, &raft.TimeoutNowResponse{}))
			for next.runs.latest.Load().raft.State() != raft.Leader {
				time.Sleep(time.Millisecond)
			}
			began := time.Now()
			for run.raft.State() == raft.Leader {
				time.Sleep(time.Millisecond)
			}
			require.Less(b, time.Since(began), 250*time.Millisecond)
			leader.door.deaf.Store(false)
			time.Sleep(3 * time.Second)
		}
	})
}

// TestTheShortestTimeoutLasts: also with the shortest timeout that an operator may choose, no
// follower of a cluster at rest campaigns.
func TestTheShortestTimeoutLasts(t *testing.T) {
	inBubbleTuned(t, func(c *Config) { c.ElectionTimeout = electionMin }, func(b *bubble) {
		leader := b.quietLeader()
		for range 20000 {
			time.Sleep(time.Millisecond)
			for _, n := range b.nodes {
				_, follows := n.runs.latest.Load().raft.LeaderWithID()
				require.Equal(b, leader.Node.self.ID(), follows)
			}
		}
	})
}

// TestALostPacketStartsNoElection: a heartbeat that comes late is not all that a follower hears
// meanwhile.
func TestALostPacketStartsNoElection(t *testing.T) {
	inBubble(t, func(b *bubble) {
		leader := b.quietLeader()
		for _, n := range b.nodes {
			n.diary.new()
		}
		for range 40 {
			leader.door.delays.Store(int64(400 * time.Millisecond))
			time.Sleep(510 * time.Millisecond)
		}
		for _, n := range b.nodes {
			require.NotContains(b, strings.Join(n.diary.new(), ""), "heartbeat timeout reached")
		}
	})
}
