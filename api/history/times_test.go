package history

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/fsm"
)

// The time of an index is not after the true one, and before it by no more than a step or a
// hundredth of its age.
func TestAgesAreExactToAHundredth(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	l := New()
	l.Restored(fsm.New())
	truth := []appliedTime{}
	at, now := uint64(1), clock.Time(1)
	for range 30_000 {
		now = now.Add(clock.Span(
			random.Int64N(int64([]clock.Span{2 * clock.Second, clock.Hour}[random.IntN(50)/49]))))
		truth = append(truth, appliedTime{at, now})
		l.Applied(fsm.Applied{Index: at, Stamp: clock.Stamp{Index: at}, Time: now})
		at += 1 + random.Uint64N(5)
	}
	require.LessOrEqual(t, len(l.times), timesMax)
	for _, m := range truth {
		sent := l.At(m.index)
		age := now.Sub(m.time)
		require.LessOrEqual(t, sent, m.time)
		require.LessOrEqual(t, m.time.Sub(sent), max(timesStep, age/timesPart), "an age of %v", age)
	}
}

func TestTimesStartOverAfterRestored(t *testing.T) {
	l := New()
	require.Zero(t, l.At(1))
	l.Applied(fsm.Applied{Index: 10, Stamp: clock.Stamp{Index: 10},
		Time: 5 * clock.Time(clock.Second)})
	require.Zero(t, l.At(9))
	require.Equal(t, 5*clock.Time(clock.Second), l.At(10))
	require.Equal(t, 5*clock.Time(clock.Second), l.At(11))
	l.Restored(machineAt(t, 20))
	require.Zero(t, l.At(19))
	require.NotZero(t, l.At(20))
}
