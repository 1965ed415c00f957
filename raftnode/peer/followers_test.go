package peer

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A follower comes back, and its log ends below what it acknowledged to the leader that still
// leads. The leader has it owe that first, and sends it nothing until it does. Then it gets
// everything again, and acknowledges as ever.
func TestAFollowerOwesWhatItAcknowledgedAndLost(t *testing.T) {
	for name, lost := range map[string]uint64{"whole": 0, "one entry": 1, "many entries": 10} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestCluster(t, false)
				defer w.stopAll()
				d1, d2, d3 := threeDisks(t, mustList(t, threeNodes))
				all := []*raftProcess{w.start(d1), w.start(d2), w.start(d3)}
				leader := w.write("before ", 20, all...)
				var bad, other *raftProcess
				for _, p := range all {
					w.requireApplied(p, "before ", 20)
					if p != leader {
						bad, other = p, bad
					}
				}
				w.stop(bad)
				last, err := bad.logs.LastIndex()
				require.NoError(t, err)
				if lost > 0 {
					require.NoError(t, bad.logs.DeleteRange(last-lost+1, last))
				}
				bad.owesLess = errors.New("its disk hangs")
				again := w.start(bad.nodeData)
				sleepVirtual(5 * time.Second)
				require.Same(t, leader, w.leader(time.Second, all[0], all[1], all[2]),
					"the same leads")
				w.write("after ", 5, leader)
				w.requireApplied(other, "after ", 5)
				if lost == 0 {
					w.requireApplied(again, "after ", 5)
					assert.NotContains(t, leader.member.logs.String(), "lost entries")
					return
				}
				sleepVirtual(30 * time.Second)
				assert.Zero(t, again.applied.count("after "))
				assert.Contains(t, leader.member.logs.String(),
					"a node lost entries that it acknowledged")

				again.mu.Lock()
				again.owesLess = nil
				again.mu.Unlock()
				w.requireApplied(again, "after ", 5)
				state := again.tail()
				assert.GreaterOrEqual(t, state.Owed.Index, last)
				assert.False(t, state.Owes())
				assert.Same(t, leader, w.leader(time.Second, all...), "the same leads")
				w.stop(other)
				w.write("with its acknowledgement ", 5, leader)
			})
		})
	}
}

// A call of an earlier term can begin late: raft pauses after a failure and does not look whether
// it still leads. What the followers did in the present term stands.
func TestALateCallOfAnEarlierTermForgetsNothing(t *testing.T) {
	one := &Transport{followers: map[raft.ServerID]*follower{}}
	for id, index := range map[raft.ServerID]uint64{"b@1": 100, "c@1": 90} {
		one.enterTerm(one.follower(id), 7)
		one.follower(id).acknowledge(7, index)
	}
	one.follower("b@1").lost = true

	index, lost := one.enterTerm(one.follower("b@1"), 5)
	require.Zero(t, index)
	require.False(t, lost, "in term 5 it acknowledged nothing that is known")
	require.EqualValues(t, 90, one.Contact("c@1").Acknowledged)
	index, lost = one.enterTerm(one.follower("b@1"), 7)
	require.EqualValues(t, 100, index)
	require.True(t, lost)
	index, lost = one.enterTerm(one.follower("b@1"), 8)
	require.Zero(t, index)
	require.False(t, lost, "a new term begins anew")
}
