package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/gate/limits"
	"zamok/clock"
)

// flooded is a log with the rates that a node has by default.
type flooded struct {
	*Log
	out     bytes.Buffer
	omitted int
}

func newFlooded(t *testing.T) *flooded {
	rates := limits.New(limits.Config{Clock: clock.Runtime(),
		Logger: slog.New(slog.DiscardHandler)})
	l := &flooded{}
	l.Log = New(Config{
		Out: &l.out, Node: "n1", Failed: func(err error) { t.Error(err) },
		Omitted: func() { l.omitted++ },
		Allow:   rates.AllowDenialLine,
	})
	return l
}

func (l *flooded) deny(who string) {
	l.RecordDenial(who, Event{Time: time.Now(), Who: who, From: "10.0.0.7:1", Call: "Get",
		Outcome: "not done", Code: "DENIED", Message: "no"})
}

// lines are the events by caller, and how many of them are in each second.
func (l *flooded) lines(t *testing.T) (by map[string][]Event, inSecond map[int64]int) {
	by, inSecond = make(map[string][]Event), make(map[int64]int)
	for line := range bytes.Lines(l.out.Bytes()) {
		var e Event
		require.NoError(t, json.Unmarshal(line, &e))
		by[e.Who] = append(by[e.Who], e)
		if e.Omitted == 0 {
			inSecond[e.Time.Unix()]++
		}
	}
	return by, inSecond
}

// denials are how many denials lines stand for.
func denials(lines []Event) (n int) {
	for _, e := range lines {
		n += max(e.Omitted, 1)
	}
	return n
}

// TestAFloodOfDenialsIsBounded: a caller that is denied a thousand times a second gets ten lines a
// second and the number of the rest every ten seconds. The denials of another caller and all acts
// of operators are written.
func TestAFloodOfDenialsIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFlooded(t)
		const seconds = 65
		began := time.Now()
		for second := range seconds {
			for range 1000 {
				l.deny("flood")
				time.Sleep(time.Millisecond)
			}
			l.deny("modest")
			for range 30 {
				l.Record(Event{Time: time.Now(), Who: "operator",
					On: map[string]string{"n": fmt.Sprint(second)}})
			}
		}
		l.Stop()
		by, _ := l.lines(t)
		assert.Len(t, by["operator"], 30*seconds)
		assert.Len(t, by["modest"], seconds)
		assert.Equal(t, 1000*seconds, denials(by["flood"]), "each is written or counted")

		perSecond, summaries := make(map[int64]int), []Event{}
		for _, e := range by["flood"] {
			if e.Omitted > 0 {
				summaries = append(summaries, e)
			} else {
				perSecond[int64(e.Time.Sub(began)/time.Second)]++
			}
		}
		assert.LessOrEqual(t, perSecond[0], 20, "a burst, and what comes after it")
		delete(perSecond, 0)
		assert.LessOrEqual(t, slices.Max(slices.Collect(maps.Values(perSecond))), 10)
		require.Len(t, summaries, 7, "one for each ten seconds, and what was left at the end")
		assert.Equal(t, "10.0.0.7:1", summaries[0].From)
		assert.Equal(t, "DENIED", summaries[0].Code)
		assert.WithinDuration(t, began, summaries[0].Since, 20*time.Millisecond)
		assert.WithinDuration(t, began.Add(omittedEvery), summaries[0].Time, 20*time.Millisecond)
		assert.InDelta(t, 9900, summaries[0].Omitted, 20)
		omitted := 0
		for _, e := range summaries {
			omitted += e.Omitted
		}
		assert.Equal(t, omitted, l.omitted)
	})
}

// TestAnonymousCallersHideNoIdentity: however many callers without an identity there are, one that
// has it keeps its lines, and its number among what is omitted.
func TestAnonymousCallersHideNoIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFlooded(t)
		for second := range 20 {
			for i := range 1000 {
				l.deny(fmt.Sprintf("anonymous@2001:db8:%x:%x::/64", second, i))
			}
			for range 15 {
				l.deny("ci-billing")
			}
			time.Sleep(time.Second)
		}
		l.Stop()
		by, _ := l.lines(t)
		assert.Equal(t, 15*20, denials(by["ci-billing"]))
		assert.GreaterOrEqual(t, len(by["ci-billing"]), 10*20)
		assert.NotEmpty(t, by["anonymous@others"])
		assert.Empty(t, by[others])
	})
}

// TestAFloodByManyIsBounded: fifty lines a second for all callers, and at most so many with the
// numbers of the rest.
func TestAFloodByManyIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFlooded(t)
		const seconds, callers = 20, 1000
		for range seconds {
			for i := range callers {
				for range 3 {
					l.deny(fmt.Sprint("caller", i))
				}
				time.Sleep(time.Second / callers)
			}
		}
		l.Stop()
		by, inSecond := l.lines(t)
		total, summaries := 0, 0
		for _, lines := range by {
			total += denials(lines)
			for _, e := range lines {
				summaries += min(e.Omitted, 1)
			}
		}
		assert.Equal(t, 3*callers*seconds, total)
		assert.LessOrEqual(t, summaries, (omittedMax+1)*(seconds/10+1))
		require.NotEmpty(t, by[others])
		written := 0
		for _, n := range inSecond {
			written += n
		}
		assert.LessOrEqual(t, written, 50*(seconds+1))
		assert.Equal(t, 3*callers*seconds-written, l.omitted)
	})
}
