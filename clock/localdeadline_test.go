package clock_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/clock"
)

func TestConfirmationToLocal(t *testing.T) {
	sent := instantAt(100, 200)
	confirmation := clock.Confirmation{Sent: sent, At: clock.Time(clock.Hour)}
	for _, c := range []struct {
		name            string
		remaining, want clock.Span
	}{
		{"long: a twentieth is given up", 60 * clock.Second, 57 * clock.Second},
		{"where both margins are the same", 4 * clock.Second, 3800 * clock.Millisecond},
		{"short: 200 ms are", 2 * clock.Second, 1800 * clock.Millisecond},
		{"shorter than the margin", 150 * clock.Millisecond, -50 * clock.Millisecond},
		{"the very time of the answer", 0, -200 * clock.Millisecond},
		{"past when the answer was given", -clock.Minute, -clock.Minute - 200*clock.Millisecond},
	} {
		assert.Equal(t, sent.Add(c.want),
			confirmation.Local(confirmation.At.Add(c.remaining)), c.name)
		assert.Equal(t, c.want <= 0,
			sent.Reached(confirmation.Local(confirmation.At.Add(c.remaining))), c.name)
	}
}

func TestConfirmationToLocalSaturates(t *testing.T) {
	const first, last = clock.Time(math.MinInt64), clock.Time(math.MaxInt64)
	for _, sent := range []clock.Instant{{}, instantAt(100, 200),
		clock.Instant{}.Add(math.MaxInt64)} {
		assert.True(t,
			clock.Confirmation{Sent: sent, At: first}.Local(last).After(instantAt(50, 50)))
		past := clock.Confirmation{Sent: sent, At: last}.Local(first)
		assert.True(t, sent.Reached(past), "%v after %v", past, sent)
	}
}

func TestLocalDeadlineWithoutConfirmation(t *testing.T) {
	for name, deadline := range map[string]*clock.LocalDeadline{
		"the zero value": {}, "no confirmation yet": clock.NewLocalDeadline(10 * clock.Second),
	} {
		_, confirmed := deadline.Until()
		assert.False(t, confirmed, name)
		_, confirmed = deadline.Local(clock.Time(clock.Hour))
		assert.False(t, confirmed, name)
		assert.False(t, deadline.Valid(clock.Instant{}), name)
	}
}

func TestLocalDeadlineUsesLatestConfirmation(t *testing.T) {
	deadline := clock.NewLocalDeadline(10 * clock.Second)
	first := clock.Confirmation{Sent: instantAt(100, 100), At: clock.Time(clock.Minute)}
	second := clock.Confirmation{Sent: instantAt(105, 105),
		At: clock.Time(clock.Minute + 7*clock.Second)}

	deadline.Confirm(second)
	leaseEnd, confirmed := deadline.Until()
	require.True(t, confirmed)
	assert.Equal(t, instantAt(105, 105).Add(9500*clock.Millisecond), leaseEnd)

	deadline.Confirm(first) // Its answer was stuck on the way.
	unmoved, _ := deadline.Until()
	assert.Equal(t, leaseEnd, unmoved)

	assert.True(t, deadline.Valid(instantAt(114, 114)))
	assert.False(t, deadline.Valid(instantAt(115, 115)))
	assert.False(t, deadline.Valid(instantAt(106, 115)), "the machine slept")

	hold, _ := deadline.Local(second.At.Add(2 * clock.Second))
	assert.Equal(t, instantAt(105, 105).Add(1800*clock.Millisecond), hold)
}
