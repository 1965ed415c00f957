package clock_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"zamok/clock"
)

func TestReadingCountsOnlyInItsOwnEpoch(t *testing.T) {
	const t5, t7, t9 = clock.Time(5), clock.Time(7), clock.Time(9)
	for _, c := range []struct {
		name  string
		epoch uint64
		r     clock.Reading
		want  clock.Time
	}{
		{"its own epoch: time goes on", 40, clock.Reading{Epoch: 40, Now: t9}, t9},
		{"its own epoch, overtaken on the way", 40, clock.Reading{Epoch: 40, Now: t5}, t7},
		{"an epoch that is over", 40, clock.Reading{Epoch: 12, Now: t9}, t7},
		{"an epoch that the log knows nothing of", 40, clock.Reading{Epoch: 99, Now: t9}, t7},
		{"no epoch is in force", 0, clock.Reading{Epoch: 40, Now: t9}, t7},
		{"no epoch is in force and none is claimed", 0, clock.Reading{Now: t9}, t7},
		{"none is claimed", 40, clock.Reading{Now: t9}, t7},
	} {
		assert.Equal(t, c.want, clock.Advance(t7, c.epoch, c.r), c.name)
	}
}

func ExampleAdvance() {
	// The machine stands at 7s, and the epoch that began at index 40 is in force.
	now := clock.Time(7 * clock.Second)

	now = clock.Advance(now, 40, clock.Reading{Epoch: 40, Now: clock.Time(8 * clock.Second)})
	fmt.Println(now)

	// An entry stamped in an earlier epoch lands late: time stands.
	now = clock.Advance(now, 40, clock.Reading{Epoch: 12, Now: clock.Time(30 * clock.Second)})
	fmt.Println(now)
	// Output:
	// 8s
	// 8s
}
