package clock_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/clock"
)

func TestProofPlacesADeadlineOfTheCluster(t *testing.T) {
	sent := at(100, 200)
	proof := clock.Confirmation{Sent: sent, At: clock.Time(clock.Hour)}
	for _, c := range []struct {
		what        string
		ahead, want clock.Span
	}{
		{"long: a twentieth is given up", 60 * clock.Second, 57 * clock.Second},
		{"where both margins are the same", 4 * clock.Second, 3800 * clock.Millisecond},
		{"short: 200 ms are", 2 * clock.Second, 1800 * clock.Millisecond},
		{"shorter than the margin", 150 * clock.Millisecond, -50 * clock.Millisecond},
		{"the very time of the answer", 0, -200 * clock.Millisecond},
		{"past when the answer was given", -clock.Minute, -clock.Minute - 200*clock.Millisecond},
	} {
		assert.Equal(t, sent.Add(c.want), proof.Local(proof.At.Add(c.ahead)), c.what)
		assert.Equal(t, c.want <= 0, sent.Reached(proof.Local(proof.At.Add(c.ahead))), c.what)
	}
}

func TestProofStopsAtTheEndsOfTheScale(t *testing.T) {
	const first, last = clock.Time(math.MinInt64), clock.Time(math.MaxInt64)
	for _, sent := range []clock.Instant{{}, at(100, 200), clock.Instant{}.Add(math.MaxInt64)} {
		assert.True(t, clock.Confirmation{Sent: sent, At: first}.Local(last).After(at(50, 50)))
		past := clock.Confirmation{Sent: sent, At: last}.Local(first)
		assert.True(t, sent.Reached(past), "%v after %v", past, sent)
	}
}

func TestTrustBeginsWithNothing(t *testing.T) {
	for what, trust := range map[string]*clock.LocalDeadline{
		"the zero value": {}, "no proof yet": clock.NewLocalDeadline(10 * clock.Second),
	} {
		_, proven := trust.Until()
		assert.False(t, proven, what)
		_, proven = trust.Local(clock.Time(clock.Hour))
		assert.False(t, proven, what)
		assert.False(t, trust.Valid(clock.Instant{}), what)
	}
}

func TestTrustLastsFromTheSendingOfTheNewestProof(t *testing.T) {
	trust := clock.NewLocalDeadline(10 * clock.Second)
	first := clock.Confirmation{Sent: at(100, 100), At: clock.Time(clock.Minute)}
	second := clock.Confirmation{Sent: at(105, 105), At: clock.Time(clock.Minute + 7*clock.Second)}

	trust.Confirm(second)
	until, proven := trust.Until()
	require.True(t, proven)
	assert.Equal(t, at(105, 105).Add(9500*clock.Millisecond), until)

	trust.Confirm(first) // Its answer was stuck on the way.
	unmoved, _ := trust.Until()
	assert.Equal(t, until, unmoved)

	assert.True(t, trust.Valid(at(114, 114)))
	assert.False(t, trust.Valid(at(115, 115)))
	assert.False(t, trust.Valid(at(106, 115)), "the machine slept")

	hold, _ := trust.Local(second.At.Add(2 * clock.Second))
	assert.Equal(t, at(105, 105).Add(1800*clock.Millisecond), hold)
}
