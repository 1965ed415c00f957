package peer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTheThirdLongestOfAMinuteCounts(t *testing.T) {
	var w WorstRoundTrip
	began := time.Now()
	at := func(after time.Duration) time.Time { return began.Add(after) }
	require.Zero(t, w.Now(at(0)))
	for i, took := range []time.Duration{5, 90, 70, 6, 80, 7} {
		w.Add(at(time.Duration(i)*8*time.Second), took)
		if i == 1 {
			require.Zero(t, w.Now(at(8*time.Second)), "two are an accident")
		}
	}
	require.EqualValues(t, 70, w.Now(at(50*time.Second)))
	require.EqualValues(t, 7, w.Now(at(75*time.Second)), "what is a minute old is forgotten")
	require.Zero(t, w.Now(at(2*time.Minute)))
	w.Add(at(2*time.Minute), 9)
	require.Zero(t, w.Now(at(2*time.Minute)), "one is an accident")
}
