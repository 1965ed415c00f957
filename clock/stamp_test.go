package clock_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"zamok/clock"
)

func TestStampsAreOrderedByTermThenIndex(t *testing.T) {
	ascending := []clock.Stamp{
		{},
		{Index: 9},
		{Term: 1, Index: 2},
		{Term: 1, Index: 10},
		{Term: 2, Index: 1},
		{Term: 10},
	}
	for i, a := range ascending {
		for j, b := range ascending {
			assert.Equal(t, i < j, a.Before(b), "%v before %v", a, b)
		}
	}
	assert.Equal(t, "3:57", clock.Stamp{Term: 3, Index: 57}.String())
}
