package raftnode

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"zamok/fsm"
)

func TestGathering(t *testing.T) {
	begin := time.Unix(0, 0)
	at := func(d time.Duration) time.Time { return begin.Add(d) }
	const ms = time.Millisecond

	t.Run("one alone leaves at once, always", func(t *testing.T) {
		var g batcher
		assert.True(t, g.ready(1, at(0)))
		g.sent(1)
		g.completed(1, 1, at(0), at(ms))
		assert.True(t, g.ready(1, at(ms)))
	})
	t.Run("nothing is no reason", func(t *testing.T) {
		var g batcher
		assert.False(t, g.ready(0, at(0)))
		g.sent(0)
		assert.False(t, g.ready(0, at(0)))
	})
	t.Run("those just answered are waited for", func(t *testing.T) {
		var g batcher
		g.sent(8)
		assert.Equal(t, ms, g.completed(8, 8, at(3*ms), at(4*ms)))
		assert.False(t, g.ready(7, at(4*ms)))
		assert.True(t, g.ready(8, at(4*ms)))
		assert.True(t, g.ready(1, at(5*ms)), "for as long as the entry took")
	})
	t.Run("as many as it lets go on", func(t *testing.T) {
		var g batcher
		g.sent(2)
		g.completed(2, 1, at(0), at(4*ms))
		assert.True(t, g.ready(1, at(4*ms)))
		g.sent(1)
		g.completed(1, 2, at(5*ms), at(9*ms))
		assert.False(t, g.ready(1, at(9*ms)))
		assert.True(t, g.ready(2, at(9*ms)))
	})
	t.Run("but not longer after a long way", func(t *testing.T) {
		var g batcher
		g.sent(8)
		assert.Equal(t, batchWaitMax, g.completed(8, 8, at(0), at(time.Second)))
		assert.True(t, g.ready(1, at(time.Second+batchWaitMax)))
	})
	t.Run("a second entry is no smaller than the first", func(t *testing.T) {
		var g batcher
		g.sent(8)
		assert.False(t, g.ready(7, at(0)))
		assert.True(t, g.ready(8, at(0)))
		g.sent(8)
		assert.False(t, g.ready(16, at(0)), "two are in flight at most")
		g.completed(8, 8, at(0), at(4*ms))
		assert.False(t, g.ready(7, at(time.Minute)))
	})
	t.Run("renewals alone delay no entry", func(t *testing.T) {
		var g batcher
		g.sent(0)
		assert.True(t, g.ready(1, at(0)))
		g.completed(0, 0, at(0), at(4*ms))
		assert.True(t, g.ready(1, at(4*ms)))
	})
}

// A client that got its answer may send its next request: the one that dropped a lock, and the one
// that was granted it.
func TestWhoGoesOn(t *testing.T) {
	const index = 7
	granted := fsm.Result{Index: index, State: fsm.Granted, Token: index}
	waits := fsm.Result{Index: index, State: fsm.Waiting}
	dropped := fsm.Result{Index: index, State: fsm.Ended}
	held := fsm.Result{Index: index, State: fsm.Granted, Token: index - 1} // of a repeated command
	grant, gone := fsm.Event{Kind: fsm.EvGranted}, fsm.Event{Kind: fsm.EvReleased}
	for name, c := range map[string]struct {
		unblocked, fences int
		results           []fsm.Result
		events            []fsm.Event
	}{
		"a lock that was free":     {1, 0, []fsm.Result{granted}, []fsm.Event{grant}},
		"a lock that is taken":     {0, 0, []fsm.Result{waits}, nil},
		"a drop without a waiter":  {1, 0, []fsm.Result{dropped}, []fsm.Event{gone}},
		"a lock that is handed on": {2, 0, []fsm.Result{dropped}, []fsm.Event{gone, grant}},
		"handed on, and requested": {2, 0, []fsm.Result{dropped, waits}, []fsm.Event{gone, grant}},
		"shared by two":            {3, 0, []fsm.Result{dropped}, []fsm.Event{gone, grant, grant}},
		"what is so already":       {1, 0, []fsm.Result{held}, nil},
		"fences":                   {3, 2, []fsm.Result{dropped}, []fsm.Event{gone}},
		"what was refused": {1, 0,
			[]fsm.Result{{Index: index, Code: fsm.LimitExceeded}}, nil},
	} {
		assert.Equal(t, c.unblocked,
			countUnblocked(c.fences+len(c.results),
				fsm.Applied{Results: c.results, Events: c.events}), name)
	}
}
