package peer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What was measured three times within a second counts.
func TestRepeated(t *testing.T) {
	var r Repeated
	began := time.Now()
	for second := range 10 {
		at := began.Add(time.Duration(second) * time.Second)
		r.Add(at, time.Hour)
		r.Add(at, time.Minute)
		require.Zero(t, r.Now(at), "two within a second are an accident")
	}
	at := began.Add(9 * time.Second)
	r.Add(at, 40*time.Millisecond)
	r.Add(at, 30*time.Millisecond)
	require.Equal(t, 40*time.Millisecond, r.Now(at))
	require.Equal(t, 40*time.Millisecond, r.Now(at.Add(10*time.Second)))
	require.Zero(t, r.Now(at.Add(11*time.Second)))
	r.Add(began.Add(19*time.Second), 20*time.Millisecond)
	require.Zero(t, r.Now(began.Add(19*time.Second)), "of another second")
	r.Add(began.Add(-2*time.Second), time.Hour) // its clock was read before that of the first
}

// Distance makes all round trips longer, load and pauses only some.
func TestTheShortestRoundTripCounts(t *testing.T) {
	var p throttle
	p.observeRoundTrip(time.Millisecond)
	for i := range 1000 {
		p.observeRoundTrip(time.Hour)
		if i%10 == 0 {
			p.observeRoundTrip(time.Millisecond)
		}
	}
	require.Less(t, p.roundTrip, 2*time.Millisecond)
	for range 100 {
		p.observeRoundTrip(200 * time.Millisecond)
	}
	require.Equal(t, 200*time.Millisecond, p.roundTrip)
}
