package raftnode

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/raftnode/peer"
	"zamok/raftnode/store"
	"zamok/raftnode/tail"
)

// A disks is a disk in memory for each node, whose tail can be cut while the node does not run.
type disks map[string]*store.Memory

// inBubbleOnMemory runs a test on three nodes whose disks are in memory.
func inBubbleOnMemory(t *testing.T, test func(*bubble, disks)) {
	d := disks{"n1": {}, "n2": {}, "n3": {}}
	tune := func(cfg *Config) {
		cfg.Store = store.Config{Memory: d[cfg.ID], Wrap: cfg.Store.Wrap}
	}
	inBubbleTuned(t, tune, func(b *bubble) { test(b, d) })
}

func (d disks) cut(b *bubble, n *bubbleNode, entries uint64) {
	require.NoError(b, d[n.self.ID].Cut(entries))
}

// write has so many entries acknowledged.
func (b *bubble) write(leader *bubbleNode, entries int) {
	for range entries {
		require.NoError(b, b.fence(leader))
	}
}

// awaitNothingOwed waits until none of these nodes owes anything.
func (b *bubble) awaitNothingOwed(nodes ...*bubbleNode) {
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		owing := ""
		for _, n := range nodes {
			if n.store.Tail().Owed != (tail.End{}) {
				owing = n.self.ID
			}
		}
		if owing == "" {
			return
		}
		require.Less(b, time.Since(began), time.Minute, "%s still owes something", owing)
	}
}

func (n *bubbleNode) logged(word string) bool {
	return strings.Contains(strings.Join(n.diary.new(), ""), word)
}

// The power of all nodes fails, and each cuts its log. When all are back the cluster goes on by
// itself.
func TestACutTailOnAllNodes(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string][3]uint64{"the same": {1, 1, 1}, "different ends": {3, 1, 5},
		"two of three": {0, 2, 2}} {
		t.Run(name, func(t *testing.T) {
			inBubbleOnMemory(t, func(b *bubble, d disks) {
				b.write(b.leader(b.nodes...), 20)
				b.kill(b.nodes...)
				for i, n := range b.nodes {
					d.cut(b, n, lost[i])
				}
				// one after the other: what was answered before does not count
				for _, n := range b.nodes {
					require.NoError(b, b.open(n))
					time.Sleep(3 * time.Second)
				}
				b.write(b.leader(b.nodes...), 1)
				b.awaitNothingOwed(b.nodes...)
				for _, n := range b.nodes {
					assert.Empty(b, n.ended)
					assert.Empty(b, n.Status().Owes)
				}
			})
		})
	}
}

// Two nodes have acknowledged entries. One of them has lost them, and the other one is away: there
// is no leader until it is back, and then nothing is lost. With a third node that has the entries,
// the cluster does not wait.
func TestALostTailWaitsForANodeThatHasIt(t *testing.T) {
	t.Parallel()
	for name, others := range map[string]bool{"the other one is away": false,
		"a third one has it": true} {
		t.Run(name, func(t *testing.T) {
			inBubbleOnMemory(t, func(b *bubble, d disks) {
				leader := b.leader(b.nodes...)
				b.write(leader, 5)
				bad, third := b.others(leader)[0], b.others(leader)[1]
				if !others {
					b.kill(third)
				}
				b.write(leader, 5)
				time.Sleep(time.Second)
				end := leader.store.Tail().Log
				b.kill(leader, bad)
				if others {
					b.kill(third)
				}
				d.cut(b, bad, 4)
				b.start(bad, third)
				if !others {
					time.Sleep(10 * time.Second)
					for _, n := range []*bubbleNode{bad, third} {
						require.Empty(b, n.Status().Leader)
					}
					require.Contains(b, bad.Status().Owes, leader.self.ID)
					require.NoError(b, b.open(leader))
				}
				next := b.leader(bad, third, leader)
				require.NotSame(b, bad, next)
				b.write(next, 1)
				require.True(b, next.store.Tail().Log.Reaches(end))
				b.awaitNothingOwed(bad)
				require.Empty(b, bad.Status().Owes)
				if others {
					require.NoError(b, b.open(leader))
				}
			})
		})
	}
}

// A follower cuts its log. Its leader goes on, in the same term, and sends it what it lost.
func TestALeaderRefillsAFollowerThatOwes(t *testing.T) {
	inBubbleOnMemory(t, func(b *bubble, d disks) {
		leader := b.leader(b.nodes...)
		b.write(leader, 10)
		time.Sleep(time.Second)
		term := leader.Status().Term
		bad := b.others(leader)[0]
		b.kill(bad)
		d.cut(b, bad, 3)
		require.NoError(b, b.open(bad))
		b.awaitNothingOwed(bad)
		b.kill(b.others(leader)[1]) // bad is needed now
		b.write(leader, 3)
		require.Equal(b, term, leader.Status().Term)
		require.False(b, bad.logged("ALARM"), "it had noticed")
		require.NoError(b, b.open(b.others(leader)[1]))
	})
}

// A node does not know what it acknowledged in the terms so far. The leader of such a term tells
// it.
func TestALeaderKnowsWhatIsOwed(t *testing.T) {
	inBubbleOnMemory(t, func(b *bubble, _ disks) {
		leader := b.leader(b.nodes...)
		b.write(leader, 10)
		term := leader.Status().Term
		for _, bad := range b.others(leader) {
			require.NoError(b, bad.store.Owe(tail.Unknown(term)))
			offer(bad.tailDebt.wake, struct{}{})
			b.awaitNothingOwed(bad)
		}
		b.write(leader, 1)
		require.Equal(b, term, leader.Status().Term)
	})
}

// Only a member may have a node raise its term, and only the leader of its term may make it owe
// something.
func TestWhoMayAskForWhatIsOwed(t *testing.T) {
	inBubbleOnMemory(t, func(b *bubble, _ disks) {
		leader := b.leader(b.nodes...)
		b.write(leader, 3)
		other := b.others(leader)[0]
		run, term := other.runs.latest.Load(), leader.Status().Term
		outsider := peer.Server{Name: "n9", Incarnation: peer.Incarnation{9}}
		_, err := other.tailDebt.answer(b.Context(), run, outsider, tail.Unknown(term))
		require.ErrorContains(b, err, "no member")
		d, err := other.tailDebt.answer(b.Context(), run, leader.Node.self,
			tail.End{Term: term, Index: 1})
		require.NoError(b, err)
		require.Equal(b, leader.Node.self.ID(), d.Leader,
			"it hears a leader, and leaves the answer to that")
		require.Equal(b, term, other.Status().Term)

		end := tail.End{Term: term, Index: leader.store.Tail().Log.Index + 7}
		before := other.store.Tail().Owed
		require.NotEmpty(b, other.handleRequest(b.Context(), b.others(leader)[1].Node.self,
			[]byte(`{"Owe":{"Term":1,"Index":99}}`)))
		require.Error(b, other.tailDebt.handleOwe(b.Context(), run, leader.Node.self,
			tail.End{Term: term - 1, Index: 99}))
		require.Equal(b, before, other.store.Tail().Owed)
		require.NoError(b, other.tailDebt.handleOwe(b.Context(), run, leader.Node.self, end))
		b.awaitNothingOwed(other)
		logged := strings.Join(other.diary.new(), "")
		require.Contains(b, logged, "ALARM: the disk of this node lost entries")
		require.Contains(b, logged, "the log has lost its end")

		// Without a leader it answers from a later term.
		b.kill(leader, b.others(leader)[1])
		for other.Status().Leader != "" {
			time.Sleep(10 * time.Millisecond)
		}
		owed := tail.End{Term: other.Status().Term + 3, Index: 1}
		d, err = other.tailDebt.answer(b.Context(), run, leader.Node.self, owed)
		require.NoError(b, err)
		assert.Greater(b, d.Term, owed.Term)
		assert.Equal(b, d.Term, other.store.Term())
		assert.Equal(b, other.store.Tail().Log, d.Log)
		assert.False(b, d.Leads)
		assert.Len(b, d.Voters, 3)
		b.start(leader, b.others(leader)[1])
	})
}

// The only voter has nobody to query. It goes on, and says what that means.
func TestTheOnlyVoterOwesNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		list, err := peer.ParseList("n1=h1:1")
		require.NoError(t, err)
		memory := new(store.Memory)
		b := &bubble{
			T: t, network: network{doors: make(map[string]*door)}, list: list,
			tune: func(cfg *Config) {
				cfg.Store = store.Config{Memory: memory, Wrap: cfg.Store.Wrap}
			},
		}
		n := &bubbleNode{self: list.Nodes()[0], disk: newSickDisk(), ended: make(chan error, 1)}
		b.nodes = append(b.nodes, n)
		b.start(n)
		b.write(b.leader(n), 5)
		b.kill(n)
		require.NoError(t, memory.Cut(2))
		b.start(n)
		b.write(b.leader(n), 1)
		b.awaitNothingOwed(n)
		require.True(t, n.logged("ALARM: the log of the only voter has lost its end"))
		b.kill(n)
	})
}

// n4 joined while n3 was away. The power of all nodes fails: n4 has the longest log, n1 and n2 have
// lost their last entry, and n4 owes an append that was torn. n3, whose answer n4 needs, does not
// know n4 by itself.
func TestAVoterAnswersOneThatJoinedWhileItWasAway(t *testing.T) {
	inBubbleOnMemory(t, func(b *bubble, d disks) {
		d["n4"] = new(store.Memory)
		n1, n2, n3 := b.nodes[0], b.nodes[1], b.nodes[2]
		b.leader(b.nodes...)
		b.kill(n3)
		leader := b.leader(n1, n2)
		n4 := b.joins("n4", leader)
		b.write(b.leader(n1, n2, n4), 20)
		time.Sleep(time.Second)
		end := n4.store.Tail().Log
		b.kill(n1, n2, n4)
		d.cut(b, n1, 1)
		d.cut(b, n2, 1)
		require.NoError(b, d["n4"].Owe(tail.End{Term: end.Term, Index: end.Index + 1}))
		b.waits(n4, b.list)
		b.start(n1, n2, n3)
		b.nodes = append(b.nodes, n4)
		b.leader(b.nodes...)
		b.awaitNothingOwed(b.nodes...)
	})
}
