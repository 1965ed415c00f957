package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/raftnode"
)

func TestIdleClusterWritesNothing(t *testing.T) {
	t.Parallel()
	quiet := time.Hour
	if testing.Short() {
		quiet /= 10
	}
	// Heartbeats are not written, and an hour of them takes long; so there are fewer.
	calm := func(c *raftnode.Config) { c.ElectionTimeout = 2 * time.Second }
	Run(t, Config{Limit: 2 * time.Hour, Tune: calm}, func(s *Sim) {
		for _, n := range s.InitialMembers() {
			n.StartProcess()
		}
		time.Sleep(10 * time.Second)
		leader := s.Leader()
		id := leader.OpenSession("visitor", 5*time.Second)
		leader.Lock(id, 1, "x")
		time.Sleep(10 * time.Second) // the visitor is gone, and all nodes are announced
		before := leader.Status()
		time.Sleep(quiet)
		after := leader.Status()
		assert.Equal(s, before.RaftIndex, after.RaftIndex, "%v without sessions wrote something", quiet)
		assert.Equal(s, before.Term, after.Term)
		require.Equal(s, 1, s.Audit.Epochs())
	})
}

// One session that renews each ttl/3 costs its renewals, and a checkpoint each second.
func TestIdleSessionEntryRate(t *testing.T) {
	t.Parallel()
	Run(t, Config{}, func(s *Sim) {
		leader := s.Start()
		const ttl, seconds = 10 * time.Second, 600
		h := s.Holder("holder", "x", ttl)
		time.Sleep(5 * time.Second)
		before := leader.Status().RaftIndex
		time.Sleep(seconds * time.Second)
		entries := leader.Status().RaftIndex - before
		renewals := uint64(seconds * time.Second / (ttl / 3))
		s.Logf("%d entries in %d s, with %d renewals", entries, seconds, renewals)
		assert.LessOrEqual(s, entries, seconds+renewals+10)
		assert.GreaterOrEqual(s, entries, uint64(seconds*9/10), "a checkpoint each second")
		s.Check(h.History)
	})
}
