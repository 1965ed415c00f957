package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"zamok/fsm"
	"zamok/jepsen/check"
)

// Time is lost at a change of leader, from when the last entry of the old epoch left. What is held up within
// an epoch loses none.
func TestStallClassification(t *testing.T) {
	t.Parallel()
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	entry := func(at int) Effect { return Effect{At: ms(at)} }
	epoch := func(at int) Effect {
		return Effect{At: ms(at), Applied: fsm.Applied{Events: []fsm.Event{{Kind: fsm.EvEpochStarted}}}}
	}
	held := func(from, to int) check.Stall {
		return check.Stall{Reason: "no commit", From: historyBegin + ms(from), To: historyBegin + ms(to), CommitsBlocked: true}
	}
	change := func(from, to int) check.Stall {
		return check.Stall{
			Reason: "change of leader", From: historyBegin + ms(from), To: historyBegin + ms(to), LostTime: ms(to-from) + time.Second,
		}
	}
	for name, c := range map[string]struct {
		entries []Effect
		want    []check.Stall
	}{
		"an entry a second": {[]Effect{entry(0), entry(1000), entry(2000)}, nil},
		"nothing is committed for a while": {
			[]Effect{entry(0), entry(5000), entry(5010)}, []check.Stall{held(0, 5000)},
		},
		"a change": {
			[]Effect{entry(0), entry(500), epoch(900)}, []check.Stall{change(500, 900)},
		},
		"the last two entries were held up": {
			[]Effect{entry(0), entry(3000), entry(3001), epoch(3500)}, []check.Stall{held(0, 3000), change(0, 3500)},
		},
		"it was held up long before": {
			[]Effect{entry(0), entry(3000), entry(3001), entry(3002), epoch(3500)},
			[]check.Stall{held(0, 3000), change(3002, 3500)},
		},
		"one change after the other": {
			[]Effect{entry(0), epoch(3000), epoch(6000)}, []check.Stall{change(0, 3000), change(3000, 6000)},
		},
	} {
		assert.Equal(t, c.want, clusterTimeStalls(c.entries), name)
	}
}
