package clock_test

import (
	"math"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"zamok/clock"
)

func TestSpanConvertsToDuration(t *testing.T) {
	assert.Equal(t, 90*clock.Second, clock.FromDuration(90*time.Second))
	assert.Equal(t, 250*time.Microsecond, (250 * clock.Microsecond).Duration())
	assert.Equal(t, "1m12.5s", (72*clock.Second + 500*clock.Millisecond).String())
	assert.Equal(t, clock.FromDuration(time.Hour), clock.Hour)
	assert.Equal(t, clock.FromDuration(time.Minute), clock.Minute)
	assert.Equal(t, clock.FromDuration(time.Nanosecond), clock.Nanosecond)
}

// A timer that is a tenth slow goes off in time, if any is left.
func TestTimerGoesOffInTime(t *testing.T) {
	for _, s := range []clock.Span{2 * clock.Millisecond, 100 * clock.Millisecond, clock.Hour} {
		assert.LessOrEqual(t, s.Timer()*clock.BendDivisor/(clock.BendDivisor-1), s.Duration())
		assert.Greater(t, s.Timer(), s.Duration()*8/10)
	}
	for _, s := range []clock.Span{clock.Millisecond, 0, -clock.Hour, math.MinInt64} {
		assert.Equal(t, time.Millisecond, s.Timer(), "so that nothing spins")
	}
}

func TestTimeArithmetic(t *testing.T) {
	at := clock.Time(0).Add(12*clock.Second + 500*clock.Millisecond)
	assert.Equal(t, "12.5s", at.String())
	assert.Equal(t, clock.Second, at.Add(clock.Second).Sub(at))
	assert.Equal(t, -clock.Second, at.Sub(at.Add(clock.Second)))
}

// C8, against arithmetic that has no ends: the result is the true one, or the
// end of the scale that lies nearest to it.
func TestTimeSaturates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyInt64().Draw(t, "a"), anyInt64().Draw(t, "b")
		sum := new(big.Int).Add(big.NewInt(a), big.NewInt(b))
		difference := new(big.Int).Sub(big.NewInt(a), big.NewInt(b))
		require.Equal(t, saturate(sum), int64(clock.Time(a).Add(clock.Span(b))))
		require.Equal(t, saturate(difference), int64(clock.Time(a).Sub(clock.Time(b))))
	})
}

// anyInt64 draws the ends of the scale far more often than chance would.
func anyInt64() *rapid.Generator[int64] {
	return rapid.OneOf(
		rapid.Int64(),
		rapid.Int64Range(math.MinInt64, math.MinInt64+3),
		rapid.Int64Range(math.MaxInt64-3, math.MaxInt64),
		rapid.Int64Range(-3, 3),
	)
}

func saturate(x *big.Int) int64 {
	switch {
	case x.IsInt64():
		return x.Int64()
	case x.Sign() > 0:
		return math.MaxInt64
	}
	return math.MinInt64
}
