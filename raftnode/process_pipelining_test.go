package raftnode

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	// refusalsMost is how often a follower refuses an append before it counts as unharmed. With
	// pipelining every second refusal wedges: raft goes on with whichever of two channels it looks at
	// first.
	refusalsMost = 30
	// wedgedAfter is how long a follower must have stood still under load to count as wedged.
	wedgedAfter = 5 * time.Second
)

// With its default of two messages on their way to a follower, raft stops replicating to one that
// refused a single append under load, for good: heartbeats go on, so nobody notices
// (hashicorp/raft#612). Which is why nodes have one (peer.Network.Transport). The bare stack shows
// both; in processes, since what is wedged never ends.
func TestARefusedAppendWedgesReplicationOnlyWithPipelining(t *testing.T) {
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
			c := newCluster(t, order{Floor: tt.inFlight})
			c.start(c.parts...)
			leader := c.leader(c.parts...)
			c.ask(leader, ask{Do: "load", Workers: 32})
			refusals, wedged := c.refuseUntilWedged(leader)
			t.Logf("wedged: %v, after %d refused appends", wedged, refusals)
			require.Equal(t, tt.wedges, wedged)
		})
	}
}

// A node is not wedged: its follower goes on after each refused append.
func TestAFollowerThatRefusesAnAppendGoesOn(t *testing.T) {
	t.Parallel()
	c := newCluster(t, order{})
	c.start(c.parts...)
	c.load(0, c.parts...)
	c.work(200)
	refusals, wedged := c.refuseUntilWedged(c.leader(c.parts...))
	require.False(t, wedged, "after %d refused appends", refusals)
	c.rest(c.parts...)
	for id, r := range c.agree(c.parts...) {
		c.ledger.compare(t, id, r)
	}
}

// refuseUntilWedged lets the followers in turn refuse one append each time, as a full disk does,
// until one of them gets nothing any more.
func (c *cluster) refuseUntilWedged(leader *part) (refusals int, wedged bool) {
	followers := c.others(leader)
	for refusals = range refusalsMost {
		follower := followers[refusals%len(followers)]
		c.ask(follower, ask{Do: "sick", How: "full once"})
		if !c.reaches(follower, c.ask(leader, ask{Do: "report"}).State.Last+1) {
			return refusals + 1, true
		}
	}
	return refusalsMost, false
}

// reaches tells whether a node's log comes to hold what another's holds already.
func (c *cluster) reaches(p *part, last uint64) bool {
	for began := time.Now(); time.Since(began) < wedgedAfter; {
		if c.ask(p, ask{Do: "report"}).State.Last >= last {
			return true
		}
	}
	return false
}
