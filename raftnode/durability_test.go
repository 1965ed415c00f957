package raftnode

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// roundsVariable says how much a test may take.
const roundsVariable = "ZAMOK_DURABILITY_ROUNDS"

// durabilityRounds is how often all processes are killed: three times, once in short tests, and as
// often as ZAMOK_DURABILITY_ROUNDS says.
func durabilityRounds(t *testing.T) int {
	if testing.Short() {
		return 1
	}
	text := os.Getenv(roundsVariable)
	if text == "" {
		return 3
	}
	rounds, err := strconv.Atoi(text)
	require.NoError(t, err, roundsVariable)
	return rounds
}

// What was acknowledged is there after all processes were killed in the middle of their work: each
// grant that was not dropped since, with its token, and no grant that was. kill -9 leaves the
// kernel's cache alone, so this shows that nothing is acknowledged before it was written; that it
// was flushed is package store's to show.
func TestNothingAcknowledgedIsLostWhenAllAreKilled(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	c := newCluster(t, order{SnapshotEntries: 256})
	for round := range durabilityRounds(t) {
		c.start(c.parts...)
		for id, r := range c.agree(c.parts...) {
			c.ledger.compare(t, id, r)
		}
		c.ledger.round()
		c.load(round, c.parts...)
		c.work(200 + random.IntN(3000))
		random.Shuffle(len(c.parts),
			func(i, j int) { c.parts[i], c.parts[j] = c.parts[j], c.parts[i] })
		c.kill(c.parts...)
	}
	c.start(c.parts...)
	for id, r := range c.agree(c.parts...) {
		c.ledger.compare(t, id, r)
	}
	c.noAlarms()
}

// When only the leader dies, its epoch passes on with everything acknowledged, to nodes that
// continue; and it comes back.
func TestNothingAcknowledgedIsLostWhenTheLeaderIsKilled(t *testing.T) {
	t.Parallel()
	c := newCluster(t, order{})
	c.start(c.parts...)
	for round := range durabilityRounds(t) {
		c.load(round, c.parts...)
		c.work(500)
		leader := c.leader(c.parts...)
		c.kill(leader)
		killed := time.Now()
		c.leader(c.others(leader)...)
		t.Logf("another leads after %v", time.Since(killed))
		c.work(500)
		c.start(leader)
		c.rest(c.parts...)
		for id, r := range c.agree(c.parts...) {
			c.ledger.compare(t, id, r)
		}
	}
	c.noAlarms()
}

// A follower that was killed, and was away for so long that the log it needs is gone, is sent a
// snapshot while the load continues.
func TestAKilledFollowerCatchesUpBySnapshot(t *testing.T) {
	t.Parallel()
	c := newCluster(t, order{SnapshotEntries: 64})
	c.start(c.parts...)
	c.load(0, c.parts...)
	c.work(500)
	leader := c.leader(c.parts...)
	away := c.others(leader)[0]
	c.kill(away)
	stays := c.others(away)
	left := c.do(stays[0], task{Do: "report"}).State
	if other := c.do(stays[1], task{Do: "report"}).State; other.Last > left.Last {
		left = other
	}
	until(t, "the logs begin after what the follower has", func() bool {
		for _, p := range stays {
			if c.do(p, task{Do: "report"}).State.First <= left.Last {
				return false
			}
		}
		return true
	})
	c.start(away)
	until(t, "a snapshot is installed", func() bool {
		return c.do(away, task{Do: "report"}).State.Restored > left.Index
	})
	c.work(500)
	c.rest(stays...)
	for id, r := range c.agree(c.parts...) {
		c.ledger.compare(t, id, r)
	}
	c.noAlarms()
}

const workersEach = 16

// load starts workers in every process: those of the leader have something to do.
func (c *cluster) load(round int, parts ...*part) {
	for _, p := range parts {
		require.Empty(c.t, c.do(p, task{Do: "load", Workers: workersEach, Round: round}).Error)
	}
}

func (c *cluster) rest(parts ...*part) {
	for _, p := range parts {
		require.Empty(c.t, c.do(p, task{Do: "rest"}).Error)
	}
}

// work waits until so much more was acknowledged. How fast that goes is the machine's affair, as
// long as it continues.
func (c *cluster) work(more int) {
	c.t.Helper()
	for goal, now := c.ledger.acknowledged()+more, 0; now < goal; {
		now = c.ledger.acknowledged()
		until(c.t, fmt.Sprintf("one of %d more grants and drops", goal-now), func() bool {
			return now >= goal || c.ledger.acknowledged() > now
		})
	}
}
