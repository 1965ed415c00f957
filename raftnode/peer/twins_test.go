package peer

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestTwins(t *testing.T) {
	var w twins
	assert.False(t, w.note("n3", run{1}))
	assert.False(t, w.note("n3", run{1}))
	assert.False(t, w.note("n3", run{2}), "a restart")
	assert.False(t, w.note("n2", run{1}), "another node")
	assert.True(t, w.note("n3", run{1}), "the run before the restart lives")
	assert.False(t, w.note("n3", run{1}))
	assert.True(t, w.note("n3", run{2}))

	for i := range 100 {
		assert.False(t, w.note("n4", run{9, byte(i)}), "a node that restarts often")
		w.note(fmt.Sprint("invented-", i, "-", len(w.seen)), run{1})
	}
	for i := range 10 * sightingsMax {
		w.note(fmt.Sprint("invented-", i), run{1})
	}
	assert.LessOrEqual(t, len(w.seen), sightingsMax)
	assert.LessOrEqual(t, len(w.seen["n4"]), runsMax)
}
