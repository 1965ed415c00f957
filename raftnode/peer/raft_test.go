package peer

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// founders are three disks after a bootstrap, each with the others on record.
func founders(t *testing.T, list List) (n1, n2, n3 *disk) {
	n1, n2 = newDisk("n1", "n1 first", list), newDisk("n2", "n2 first", list)
	n3 = newDisk("n3", "n3 first", list)
	for _, d := range []*disk{n1, n2, n3} {
		for _, other := range []*disk{n1, n2, n3} {
			d.known[other.id] = other.incarnation
		}
		d.bootstrap(t)
	}
	return n1, n2, n3
}

const acknowledged = 50

// wipedVoter is the story of design: n2 is cut off; 50 entries are acknowledged by n1 and n3;
// n3 loses its disk, n1 goes down, n2 comes back, and at n3's address there is what comesBack
// makes. It returns n2, restarted, and the newcomer, and n1's disk.
func wipedVoter(t *testing.T, w *world,
	comesBack func(n2 *disk) *disk) (n2, newcomer *process, n1 *disk) {
	d1, d2, d3 := founders(t, mustList(t, threeNodes))
	p1, p2, p3 := w.start(d1), w.start(d2), w.start(d3)
	first := w.leader(10*time.Second, p1, p2, p3)
	require.NotNil(t, first)
	w.write(first, "before ", 1)
	w.arrives(p2, "before ", 1)
	for _, p := range []*process{p1, p2, p3} {
		p.cluster = clusterOf("home") // the first LeaderStart is applied and the marker complete
		if !w.plain {
			require.NoError(t, p.member.SetCluster(p.cluster))
		}
	}
	w.cut(d2.address)
	leader := w.leader(10*time.Second, p1, p3)
	require.NotNil(t, leader)
	w.write(leader, "acknowledged ", acknowledged)
	w.stop(p3)
	w.stop(p1)
	w.stop(p2)
	w.heal(d2.address)
	return w.start(d2), w.start(comesBack(d2)), d1
}

// comebacks are what an operator might do with the machine of a node that lost its disk.
func comebacks(t *testing.T) map[string]struct {
	comesBack func(n2 *disk) *disk
	want      Code
} {
	list := mustList(t, threeNodes)
	again := func() *disk {
		d := newDisk("n3", "n3 again", list)
		d.bootstrap(t) // whatever Decide says
		return d
	}
	return map[string]struct {
		comesBack func(n2 *disk) *disk
		want      Code
	}{
		"the same id, bootstrapped again": {func(*disk) *disk { return again() }, OtherIncarnation},
		"the same id, with the cluster's id": {
			func(*disk) *disk { d := again(); d.cluster = clusterOf("home"); return d }, OtherIncarnation,
		},
		"the same id, and the others' record is gone": {
			func(n2 *disk) *disk { clear(n2.known); return again() }, NotOnRecord,
		},
		"a new id at the old address": {
			func(*disk) *disk {
				d := newDisk("n4", "n4 first", list)
				d.address, d.cluster = "h3:5751", clusterOf("home")
				return d
			}, NotMeant,
		},
		"a node of another cluster at the address": {
			func(*disk) *disk { d := again(); d.cluster = clusterOf("away"); return d }, OtherCluster,
		},
	}
}

func TestWipedVoterIsRefusedAndNothingIsLost(t *testing.T) {
	for name, c := range comebacks(t) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, false)
				defer w.stopAll()
				n2, newcomer, d1 := wipedVoter(t, w, c.comesBack)
				require.Nil(t, w.leader(20*time.Second, n2, newcomer), "elected without the entries")
				assert.Contains(t, n2.member.diary.String(), c.want.String())
				assert.Contains(t, n2.member.diary.String(), c.want.cure())
				assert.Contains(t, newcomer.member.diary.String(), c.want.String(), "told as well")

				n1 := w.start(d1)
				leader := w.leader(20*time.Second, n1, n2)
				require.NotNil(t, leader)
				w.write(leader, "after ", 1)
				for _, p := range []*process{n1, n2} {
					w.arrives(p, "acknowledged ", acknowledged)
					w.arrives(p, "after ", 1)
				}
			})
		})
	}
}

// The same without the handshake: this is what it is for. If this test fails, hashicorp/raft has
// learned to look at whom it reaches.
func TestWipedVoterLosesEverythingWithoutTheHandshake(t *testing.T) {
	for name, c := range comebacks(t) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, true)
				defer w.stopAll()
				n2, newcomer, d1 := wipedVoter(t, w, c.comesBack)
				leader := w.leader(20*time.Second, n2, newcomer)
				require.NotNil(t, leader)
				w.write(leader, "after ", 1)
				n1 := w.start(d1)
				time.Sleep(time.Minute)
				// n1 has overwritten what it had acknowledged, or, where the new leader won a term that
				// n1 had already led in, takes its own entries for the leader's and differs for ever.
				t.Logf("entries acknowledged: %d; there now: %d on n1, %d on n2", acknowledged,
					n1.journal.count("acknowledged "), n2.journal.count("acknowledged "))
				w.arrives(n2, "after ", 1)
				assert.Zero(t, n2.journal.count("acknowledged "))
			})
		})
	}
}

// A node that was given another list has written another configuration under the same index and
// term, which Raft never notices.
func TestNodeOfAnotherListStaysOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, false)
		defer w.stopAll()
		d1, d2, _ := founders(t, mustList(t, threeNodes))
		d3 := newDisk("n3", "n3 first", mustList(t, threeNodes+",n4=h4:5751"))
		d3.bootstrap(t)
		p1, p2, p3 := w.start(d1), w.start(d2), w.start(d3)
		leader := w.leader(10*time.Second, p1, p2)
		require.NotNil(t, leader)
		w.write(leader, "acknowledged ", acknowledged)
		for _, p := range []*process{p1, p2} {
			w.arrives(p, "acknowledged ", acknowledged)
		}
		require.Nil(t, w.leader(20*time.Second, p3))
		assert.Zero(t, p3.journal.count(""))
		for _, p := range []*process{leader, p3} {
			assert.Contains(t, p.member.diary.String(), OtherList.String(), p.id)
			assert.Contains(t, p.member.diary.String(), OtherList.cure(), p.id)
		}
	})
}

// A copy of n3's disk runs beside n3. Nothing that the two say tells them apart, so it is not
// kept out; it is noticed, it gets no call unless it sits at n3's address, and while a leader is
// there it changes nothing.
func TestClonedDataDirectoryIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, false)
		defer w.stopAll()
		d1, d2, d3 := founders(t, mustList(t, threeNodes))
		p1, p2, p3 := w.start(d1), w.start(d2), w.start(d3)
		leader := w.leader(10*time.Second, p1, p2, p3)
		require.NotNil(t, leader)
		w.write(leader, "before ", 5)
		w.arrives(p3, "before ", 5)

		clone := w.start(d3.clone(t, "h4:5751"))
		time.Sleep(10 * time.Second)
		leader = w.leader(10*time.Second, p1, p2, p3)
		require.NotNil(t, leader)
		w.write(leader, "acknowledged ", acknowledged)
		for _, p := range []*process{p1, p2, p3} {
			w.arrives(p, "acknowledged ", acknowledged)
		}
		assert.Zero(t, clone.journal.count("acknowledged "), "nobody calls it")
		logs := p1.member.diary.String() + p2.member.diary.String() + p3.member.diary.String()
		assert.Contains(t, logs, "two processes run as one node")
		assert.Contains(t, logs, "node=n3")
	})
}

// The clone takes the address of a follower that is down: every call that reaches it there means
// that follower, so it can't be counted as a second voter.
func TestCloneAtAnotherNodesAddressIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, false)
		defer w.stopAll()
		d1, d2, d3 := founders(t, mustList(t, threeNodes))
		p1, p2, p3 := w.start(d1), w.start(d2), w.start(d3)
		leader := w.leader(10*time.Second, p1, p2, p3)
		require.NotNil(t, leader)
		down, up := p2, p1
		if leader == p2 {
			down, up = p1, p2
		}
		w.write(leader, "before ", 1)
		for _, p := range []*process{p1, p2, p3} {
			w.arrives(p, "before ", 1)
		}
		w.stop(down)
		clone := w.start(d3.clone(t, down.address))
		time.Sleep(5 * time.Second)
		w.write(leader, "acknowledged ", acknowledged)
		w.arrives(up, "acknowledged ", acknowledged)
		w.arrives(p3, "acknowledged ", acknowledged)
		assert.Zero(t, clone.journal.count("acknowledged "))
		assert.Contains(t, leader.member.diary.String(), NotMeant.String())
		w.stop(clone)
		w.arrives(w.start(down.disk), "acknowledged ", acknowledged)
	})
}

// The cure that a refusal names works: n3 lost its disk, is removed, and the empty machine joins
// as n4 at the old address, while connections that meant n3 are still in the leader's pool.
func TestCureForALostDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, false)
		defer w.stopAll()
		d1, d2, d3 := founders(t, mustList(t, threeNodes))
		p1, p2, p3 := w.start(d1), w.start(d2), w.start(d3)
		leader := w.leader(10*time.Second, p1, p2, p3)
		require.NotNil(t, leader)
		w.write(leader, "before ", acknowledged)
		w.arrives(p3, "before ", acknowledged)
		for _, d := range []*disk{d1, d2, d3} {
			d.cluster = clusterOf("home")
		}
		for _, p := range []*process{p1, p2} {
			require.NoError(t, p.member.SetCluster(clusterOf("home")))
		}
		w.stop(p3)
		if leader == p3 {
			leader = w.leader(10*time.Second, p1, p2)
			require.NotNil(t, leader)
		}
		require.NoError(t, leader.RemoveServer("n3", 0, time.Second).Error())
		d4 := newDisk("n4", "n4 first", d1.list)
		d4.address, d4.cluster = d3.address, clusterOf("home") // joining handed it id and list
		p4 := w.start(d4)
		address := raft.ServerAddress(d4.address)
		require.NoError(t, leader.AddNonvoter("n4", address, 0, time.Second).Error())
		w.arrives(p4, "before ", acknowledged)
		require.NoError(t, leader.AddVoter("n4", address, 0, time.Second).Error())

		// Two of the three are enough, so n4 counts as a voter now.
		down := p1
		if leader == p1 {
			down = p2
		}
		w.stop(down)
		w.write(leader, "after ", acknowledged)
		w.arrives(p4, "after ", acknowledged)
	})
}

// Three empty nodes are started at any moments, each asks until it may begin, and all of them do,
// whoever is first. Later one loses its disk, and may not.
func TestBootstrapByAskingEverybody(t *testing.T) {
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(uint64(seed), 0))
	for range 20 {
		starts := [3]time.Duration{}
		for i := range starts {
			starts[i] = time.Duration(random.Int64N(int64(3 * time.Second)))
		}
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, false)
			defer w.stopAll()
			var empty [3]*disk
			var begun [3]*process
			var starting sync.WaitGroup
			for i, id := range []string{"n1", "n2", "n3"} {
				empty[i] = newDisk(id, id+" first", mustList(t, threeNodes))
				starting.Go(func() {
					time.Sleep(starts[i])
					begun[i] = w.startEmpty(empty[i])
				})
			}
			starting.Wait()
			for i, p := range begun {
				require.NotNil(t, p, "n%d, started at %v", i+1, starts)
			}
			leader := w.leader(10*time.Second, begun[:]...)
			require.NotNil(t, leader)
			w.write(leader, "acknowledged ", acknowledged)

			w.stop(begun[2])
			require.Nil(t, w.startEmpty(newDisk("n3", "n3 again", empty[2].list)))
		})
	}
}

// startEmpty is what a node does with an empty directory; nil: it was refused.
func (w *world) startEmpty(d *disk) *process {
	var mu sync.Mutex // guards d.known and holds
	holds := false
	m := open(w, w.fabric, Config{
		ID: d.id, Incarnation: d.incarnation, List: d.list, Advertise: d.address,
		Known: func(id string) (Incarnation, bool) {
			mu.Lock()
			defer mu.Unlock()
			i, ok := d.known[id]
			return i, ok
		},
		Holds: func() bool {
			mu.Lock()
			defer mu.Unlock()
			return holds
		},
	})
	for {
		switch do := Decide(m.Mine(), m.AskAll(w.Context())); do.Act {
		case Refuse:
			assert.Contains(w, do.Reason, "zamok join")
			assert.NoError(w, m.Close())
			return nil
		case Wait:
			time.Sleep(200 * time.Millisecond)
		case Bootstrap:
			mu.Lock()
			d.known = do.Founders
			d.bootstrap(w.T)
			holds = true
			mu.Unlock()
			return w.run(d, m)
		}
	}
}

// inVirtualTime waits inside a bubble, where that takes no time.
func inVirtualTime(d time.Duration) {
	synctest.Wait() // panics outside of one
	time.Sleep(d)
}
