package raftnode

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestGathering(t *testing.T) {
	begin := time.Unix(0, 0)
	at := func(d time.Duration) time.Time { return begin.Add(d) }
	const ms = time.Millisecond

	t.Run("one alone leaves at once, always", func(t *testing.T) {
		var g gathering
		assert.True(t, g.ready(1, 0, at(0)))
		g.sent(1)
		g.landed(1, 1, at(0), at(ms))
		assert.True(t, g.ready(1, 0, at(ms)))
	})
	t.Run("nothing is no reason", func(t *testing.T) {
		var g gathering
		assert.False(t, g.ready(0, 0, at(0)))
		assert.False(t, g.ready(0, 1, at(0)))
	})
	t.Run("those just answered are waited for", func(t *testing.T) {
		var g gathering
		g.sent(8)
		assert.Equal(t, ms, g.landed(8, 8, at(0), at(4*ms)))
		assert.False(t, g.ready(7, 0, at(4*ms)))
		assert.True(t, g.ready(8, 0, at(4*ms)))
		assert.True(t, g.ready(1, 0, at(5*ms)), "for a quarter of the way that the entry took")
	})
	t.Run("but not longer after a long way", func(t *testing.T) {
		var g gathering
		g.sent(8)
		assert.Equal(t, gatherMax, g.landed(8, 8, at(0), at(time.Second)))
		assert.True(t, g.ready(1, 0, at(time.Second+gatherMax)))
	})
	t.Run("a second entry is no smaller than the first", func(t *testing.T) {
		var g gathering
		g.sent(8)
		assert.False(t, g.ready(7, 1, at(0)))
		assert.True(t, g.ready(8, 1, at(0)))
		g.sent(8)
		g.landed(8, 8, at(0), at(4*ms))
		assert.False(t, g.ready(7, 1, at(time.Minute)))
	})
	t.Run("renewals alone hold up nobody", func(t *testing.T) {
		var g gathering
		g.sent(0)
		assert.True(t, g.ready(1, 1, at(0)))
		g.landed(0, 0, at(0), at(4*ms))
		assert.True(t, g.ready(1, 0, at(4*ms)))
	})
}
