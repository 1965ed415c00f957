package clock_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"zamok/clock"
)

// What a stall lost is lost: it must not come in by the readings after it, or it ages those whose
// renewals waited outside, only a little later.
func TestTimeDiscardedByStallStaysDiscarded(t *testing.T) {
	var src clock.Manual
	leader := clock.StartLeader(&src, testEpoch, 0)
	src.Advance(clock.Minute)
	for range 3 {
		assert.Equal(t, clock.Time(clock.StepMax), leader.Read().Now)
	}
	src.Advance(clock.Millisecond)
	assert.Equal(t, clock.Time(clock.StepMax+clock.Millisecond), leader.Read().Now)
	assert.Equal(t, clock.Minute-clock.StepMax, leader.Discarded())
}
