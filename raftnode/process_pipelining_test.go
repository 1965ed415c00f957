package raftnode

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	// refusalsMost is how often a follower refuses an append before it counts as unharmed. With
	// pipelining every second refusal wedges: raft continues with whichever of two channels it
	// looks at first.
	refusalsMost      = 30
	refusalsMostShort = 6
	// wedgedAfter is how long a follower must have stood still under load to count as wedged:
	// longer than a busy machine lets a process stand still that continues then.
	wedgedAfter = 10 * time.Second
	// steady is a timeout of elections after which a busy machine seldom changes its leader, which
	// would end what is wedged.
	steady = 4 * time.Second
)

// With its default of two messages on their way to a follower, raft stops replicating to one that
// refused a single append under load, for good: heartbeats continue, so it goes unnoticed
// (hashicorp/raft#612). Which is why nodes have one (peer.Network.Transport). The bare stack shows
// both; in processes, since what is wedged never ends.
func TestARefusedAppendWedgesReplicationOnlyWithPipelining(t *testing.T) {
	if testing.Short() {
		t.Skip("shows what raft does, not what a node does")
	}
	t.Parallel()
	for _, tt := range []struct {
		name     string
		inFlight int
		wedges   bool
	}{
		{"two in flight", 2, true},
		{"one in flight", 1, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, order{Floor: tt.inFlight, Election: steady})
			c.start(c.parts...)
			for _, p := range c.parts {
				c.do(p, task{Do: "load", Workers: 32}) // those of the leader have something to do
			}
			refusals, wedged := c.refuseUntilWedged()
			t.Logf("wedged: %v, after %d refused appends", wedged, refusals)
			require.Equal(t, tt.wedges, wedged)
		})
	}
}

// A node is not wedged: its follower continues after each refused append.
func TestAFollowerThatRefusesAnAppendGoesOn(t *testing.T) {
	t.Parallel()
	c := newCluster(t, order{Election: steady})
	c.start(c.parts...)
	c.load(0, c.parts...)
	c.work(200)
	refusals, wedged := c.refuseUntilWedged()
	require.False(t, wedged, "after %d refused appends", refusals)
	c.rest(c.parts...)
	for id, r := range c.agree(c.parts...) {
		c.ledger.compare(t, id, r)
	}
}

// refuseUntilWedged lets the followers in turn refuse one append each time, as a full disk does,
// until one of them gets nothing any more.
func (c *cluster) refuseUntilWedged() (refusals int, wedged bool) {
	// raft waits longer and longer for one that was not there when it began
	for _, p := range c.parts {
		until(c.t, p.ID+" follows", func() bool {
			led := c.do(c.leader(c.parts...), task{Do: "report"}).State.Last
			return c.do(p, task{Do: "report"}).State.Last >= led
		})
	}
	most := refusalsMost
	if testing.Short() {
		most = refusalsMostShort
	}
	for refusals = range most {
		leader := c.leader(c.parts...)
		follower := c.others(leader)[refusals%2]
		c.do(follower, task{Do: "sick", How: "full once"})
		if c.standsStill(follower, leader) {
			return refusals + 1, true
		}
	}
	return most, false
}

// standsStill reports whether a follower does not come to hold more than its leader's log holds
// already, though that continues to lead.
func (c *cluster) standsStill(follower, leader *part) bool {
	before := c.do(leader, task{Do: "report"}).State
	for began := time.Now(); time.Since(began) < wedgedAfter; {
		if c.do(follower, task{Do: "report"}).State.Last > before.Last {
			return false
		}
	}
	now := c.do(leader, task{Do: "report"}).State
	return now.Leads && now.Term == before.Term
}
