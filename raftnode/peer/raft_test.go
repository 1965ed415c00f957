package peer

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// threeDisks are three disks after a bootstrap.
func threeDisks(t *testing.T, list List) (n1, n2, n3 *nodeData) {
	n1, n2, n3 = newNodeData(serverOf("n1"), list), newNodeData(serverOf("n2"), list),
		newNodeData(serverOf("n3"), list)
	for _, d := range []*nodeData{n1, n2, n3} {
		d.agree(initialMembersOf(list))
		d.bootstrap(t)
	}
	return n1, n2, n3
}

const acknowledged = 50

// wipedVoter is the story of design: n2 is cut off; 50 entries are acknowledged by n1 and n3;
// n3 loses its disk, n1 goes down, n2 comes back, and at n3's address there is what comesBack
// makes. It returns n2, restarted, and the newcomer, and n1's disk. Nodes know their cluster's id
// by then, or, with early, don't: then the initial members speak for them.
func wipedVoter(t *testing.T, w *testCluster, early bool,
	comesBack func() *nodeData) (n2, newcomer *raftProcess, n1 *nodeData) {
	d1, d2, d3 := threeDisks(t, mustList(t, threeNodes))
	p1, p2, p3 := w.start(d1), w.start(d2), w.start(d3)
	w.write("before ", 1, p1, p2, p3)
	w.requireApplied(p2, "before ", 1)
	for _, p := range []*raftProcess{p1, p2, p3} {
		if early {
			break
		}
		p.cluster = clusterOf("home") // the first LeaderStart is applied and the marker complete
		if !w.plain {
			require.NoError(t, p.member.SetCluster(p.cluster))
		}
	}
	w.disconnect(d2.address)
	w.write("acknowledged ", acknowledged, p1, p3)
	w.stop(p3)
	w.stop(p1)
	w.stop(p2)
	w.reconnect(d2.address)
	return w.start(d2), w.start(comesBack()), d1
}

// comeback is what an operator might do with the machine of a node that lost its disk.
type comeback struct {
	comesBack   func() *nodeData
	want, early RefusalCode // early: before any node knows the cluster's id
}

func comebacks(t *testing.T) map[string]comeback {
	list := mustList(t, threeNodes)
	again := func(f InitialMembers, cluster string) *nodeData {
		d := newNodeData(serverAfterWipe("n3"), list)
		d.agree(f)
		d.bootstrap(t) // whatever Decide says
		d.cluster = clusterOf(cluster)
		return d
	}
	mine := initialMembersOf(list, serverAfterWipe("n3"))
	return map[string]comeback{
		"the same name, bootstrapped again": {
			func() *nodeData { return again(mine, "") }, OtherIncarnation, OtherIncarnation,
		},
		"the same name, with the initial members of old": {
			func() *nodeData { return again(initialMembersOf(list), "") }, OtherIncarnation,
			OtherIncarnation,
		},
		"the same name, with the cluster's id": {
			func() *nodeData { return again(mine, "home") }, OtherIncarnation, OtherIncarnation,
		},
		"the same name, waiting to be taken in": {
			func() *nodeData {
				d := newNodeData(serverAfterWipe("n3"), list)
				d.cluster = clusterOf("home")
				return d
			}, OtherIncarnation, OtherIncarnation,
		},
		"a new name at the old address": {
			func() *nodeData {
				d := newNodeData(serverOf("n4"), list)
				d.address, d.cluster = "h3:5751", clusterOf("home")
				return d
			}, OtherNode, OtherNode,
		},
		"a node of another cluster at the address": {
			func() *nodeData { return again(mine, "away") }, OtherCluster, OtherIncarnation,
		},
	}
}

func TestWipedVoterIsRefusedAndNothingIsLost(t *testing.T) {
	for name, c := range comebacks(t) {
		for when, early := range map[string]bool{"": false, ", before there is an id": true} {
			t.Run(name+when, func(t *testing.T) {
				want := c.want
				if early {
					want = c.early
				}
				synctest.Test(t, func(t *testing.T) {
					refusedAndNothingLost(t, early, c.comesBack, want)
				})
			})
		}
	}
}

func refusedAndNothingLost(t *testing.T, early bool, comesBack func() *nodeData, want RefusalCode) {
	w := newTestCluster(t, false)
	defer w.stopAll()
	n2, newcomer, d1 := wipedVoter(t, w, early, comesBack)
	require.Nil(t, w.leader(20*time.Second, n2, newcomer), "elected without the entries")
	assert.Contains(t, n2.member.logs.String(), want.String())
	assert.Contains(t, n2.member.logs.String(), want.remedy())
	assert.Contains(t, newcomer.member.logs.String(), want.String(), "it has the reason too")

	n1 := w.start(d1)
	w.write("after ", 1, n1, n2)
	for _, p := range []*raftProcess{n1, n2} {
		w.requireApplied(p, "acknowledged ", acknowledged)
		w.requireApplied(p, "after ", 1)
	}
}

// The same without the handshake: this is what it is for. If this test fails, hashicorp/raft has
// learned to look at whom it reaches.
func TestWipedVoterLosesEverythingWithoutTheHandshake(t *testing.T) {
	for name, c := range comebacks(t) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestCluster(t, true)
				defer w.stopAll()
				n2, newcomer, d1 := wipedVoter(t, w, false, c.comesBack)
				w.write("after ", 1, n2, newcomer)
				n1 := w.start(d1)
				time.Sleep(time.Minute)
				// n1 has overwritten what it had acknowledged, or, where the new leader won a term
				// that n1 had already led in, takes its own entries for the leader's and differs
				// forever.
				t.Logf("entries acknowledged: %d; there now: %d on n1, %d on n2", acknowledged,
					n1.applied.count("acknowledged "), n2.applied.count("acknowledged "))
				w.requireApplied(n2, "after ", 1)
				assert.Zero(t, n2.applied.count("acknowledged "))
			})
		})
	}
}

// n4 joined a cluster of n1 and n3, acknowledged entries with n1, and lost its disk; n1 goes down.
// n3 was cut off since it received n4's vote, or has only its log and has applied nothing since its
// process began: with what it remembers it could not tell the directories of n4 apart, and it need
// not.
func TestWipedNewcomerIsNoVoterForNodesThatNeverMetIt(t *testing.T) {
	for name, restarts := range map[string]bool{"cut off at once": false,
		"and nothing applied": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { wipedNewcomer(t, restarts) })
		})
	}
}

func wipedNewcomer(t *testing.T, restarts bool) {
	w := newTestCluster(t, false)
	defer w.stopAll()
	list := mustList(t, "n1=h1:5751,n3=h3:5751")
	d1, d3 := newNodeData(serverOf("n1"), list), newNodeData(serverOf("n3"), list)
	for _, d := range []*nodeData{d1, d3} {
		d.agree(initialMembersOf(list))
		d.bootstrap(t)
		d.cluster = clusterOf("home")
	}
	p1, p3 := w.start(d1), w.start(d3)
	leader := w.leader(10*time.Second, p1, p3)
	require.NotNil(t, leader)
	joins := func(s Server) *nodeData {
		d := newNodeData(s, List{})
		d.cluster = clusterOf("home")
		return d
	}
	p4 := w.start(joins(serverOf("n4")))
	require.NoError(t, leader.AddVoter(p4.ID(), "h4:5751", 0, 10*time.Second).Error())
	w.requireApplied(p3, "", int(leader.applied.count("")))
	if leader == p3 {
		require.NoError(t, p3.LeadershipTransferToServer(p1.ID(), "h1:5751").Error())
	}
	w.disconnect(d3.address)
	w.write("acknowledged ", acknowledged, p1, p4)
	w.stop(p4)
	w.stop(p1)
	if restarts {
		w.stop(p3)
		p3 = w.start(d3)
	}
	w.reconnect(d3.address)
	wiped := w.start(joins(serverAfterWipe("n4")))
	require.Nil(t, w.leader(20*time.Second, p3, wiped), "elected without the entries")
	assert.Contains(t, p3.member.logs.String(), OtherIncarnation.String())

	p1 = w.start(d1)
	require.NotNil(t, w.leader(20*time.Second, p1, p3))
	w.requireApplied(p3, "acknowledged ", acknowledged)
}

// A node that began with other initial members has written another configuration under the same
// index and term, which Raft never notices.
func TestNodeOfOtherInitialMembersIsRefused(t *testing.T) {
	three := mustList(t, threeNodes)
	for name, other := range map[string]InitialMembers{
		"another list":                  initialMembersOf(mustList(t, threeNodes+",n4=h4:5751")),
		"another directory of a member": initialMembersOf(three, serverAfterWipe("n1")),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestCluster(t, false)
				defer w.stopAll()
				d1, d2, _ := threeDisks(t, three)
				d3 := newNodeData(serverOf("n3"), other.list())
				d3.agree(other)
				d3.bootstrap(t)
				p1, p2, p3 := w.start(d1), w.start(d2), w.start(d3)
				leader := w.write("acknowledged ", acknowledged, p1, p2)
				for _, p := range []*raftProcess{p1, p2} {
					w.requireApplied(p, "acknowledged ", acknowledged)
				}
				require.Nil(t, w.leader(20*time.Second, p3))
				assert.Zero(t, p3.applied.count(""))
				for _, p := range []*raftProcess{leader, p3} {
					assert.Contains(t, p.member.logs.String(), OtherInitialMembers.String(), p.Name)
					assert.Contains(t, p.member.logs.String(), OtherInitialMembers.remedy(), p.Name)
				}
			})
		})
	}
}

// A copy of n3's disk runs beside n3. Nothing that the two send distinguishes them, so it is not
// refused; it is noticed, it gets no call unless it runs at n3's address, and while there is a
// leader it changes nothing.
func TestClonedDataDirectoryIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, false)
		defer w.stopAll()
		d1, d2, d3 := threeDisks(t, mustList(t, threeNodes))
		p1, p2, p3 := w.start(d1), w.start(d2), w.start(d3)
		w.write("before ", 5, p1, p2, p3)
		w.requireApplied(p3, "before ", 5)

		clone := w.start(d3.clone(t, "h4:5751"))
		time.Sleep(10 * time.Second)
		w.write("acknowledged ", acknowledged, p1, p2, p3)
		for _, p := range []*raftProcess{p1, p2, p3} {
			w.requireApplied(p, "acknowledged ", acknowledged)
		}
		assert.Zero(t, clone.applied.count("acknowledged "), "no node calls it")
		logs := p1.member.logs.String() + p2.member.logs.String() + p3.member.logs.String()
		assert.Contains(t, logs, "clone detected")
		assert.Contains(t, logs, "node=n3")
	})
}

// The clone takes the address of a follower that is down: every call that reaches it there is for
// that follower, so it can't be counted as a second voter. The clone stays passive: one that stands
// for election shows itself, which ends n3's connections, may cost the leader its majority for long
// enough, and may even have the clone elected, with n3's vote.
func TestCloneAtAnotherNodesAddressIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, false)
		defer w.stopAll()
		d1, d2, d3 := threeDisks(t, mustList(t, threeNodes))
		p1, p2, p3 := w.start(d1), w.start(d2), w.start(d3)
		leader := w.write("before ", 1, p1, p2, p3)
		down, up := p2, p1
		if leader == p2 {
			down, up = p1, p2
		}
		for _, p := range []*raftProcess{p1, p2, p3} {
			w.requireApplied(p, "before ", 1)
		}
		w.stop(down)
		copied := d3.clone(t, down.address)
		copied.neverCampaigns = true
		clone := w.start(copied)
		time.Sleep(5 * time.Second)
		leader = w.write("acknowledged ", acknowledged, up, p3)
		w.requireApplied(up, "acknowledged ", acknowledged)
		w.requireApplied(p3, "acknowledged ", acknowledged)
		assert.Zero(t, clone.applied.count("acknowledged "))
		assert.Contains(t, leader.member.logs.String(), OtherNode.String())
		w.stop(clone)
		w.requireApplied(w.start(down.nodeData), "acknowledged ", acknowledged)
	})
}

// The cures that a refusal names work: n3 lost its disk and is removed, and the empty machine joins
// at the old address, under a new name or its own, while connections to the lost directory are
// still in the leader's pool.
func TestCureForALostDisk(t *testing.T) {
	for name, fresh := range map[string]Server{"a new name": serverOf("n4"),
		"its own": serverAfterWipe("n3")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { cureForALostDisk(t, fresh) })
		})
	}
}

func cureForALostDisk(t *testing.T, fresh Server) {
	w := newTestCluster(t, false)
	defer w.stopAll()
	d1, d2, d3 := threeDisks(t, mustList(t, threeNodes))
	p1, p2, p3 := w.start(d1), w.start(d2), w.start(d3)
	w.write("before ", acknowledged, p1, p2, p3)
	w.requireApplied(p3, "before ", acknowledged)
	for _, p := range []*raftProcess{p1, p2} {
		require.NoError(t, p.member.SetCluster(clusterOf("home")))
	}
	w.stop(p3)
	w.retryOnLeader(func(leader *raftProcess) raft.Future {
		return leader.RemoveServer(d3.ID(), 0, time.Second)
	}, p1, p2)
	d4 := newNodeData(fresh, List{})
	d4.address, d4.cluster = d3.address, clusterOf("home") // it was given the id
	p4 := w.start(d4)
	address := raft.ServerAddress(d4.address)
	w.retryOnLeader(func(leader *raftProcess) raft.Future {
		return leader.AddNonvoter(d4.ID(), address, 0, time.Second)
	}, p1, p2)
	w.requireApplied(p4, "before ", acknowledged)
	leader := w.retryOnLeader(func(leader *raftProcess) raft.Future {
		return leader.AddVoter(d4.ID(), address, 0, time.Second)
	}, p1, p2)

	// Two of the three are enough, so the newcomer counts as a voter now.
	down, up := p1, p2
	if leader == p1 {
		down, up = p2, p1
	}
	w.stop(down)
	w.write("after ", acknowledged, up, p4)
	w.requireApplied(p4, "after ", acknowledged)
}

// sleepVirtual waits inside a bubble, where that takes no time.
func sleepVirtual(d time.Duration) {
	synctest.Wait() // panics outside of one
	time.Sleep(d)
}
