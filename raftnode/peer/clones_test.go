package peer

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestTwins(t *testing.T) {
	var w cloneDetector
	meet := func(name string, met generation, wantFresh, wantTwin bool, reason string) {
		t.Helper()
		fresh, twin := w.observe(serverOf(name), met)
		assert.Equal(t, [2]bool{wantFresh, wantTwin}, [2]bool{fresh, twin}, reason)
	}
	meet("n3", 1, true, false, "the first")
	meet("n3", 1, false, false, "the same")
	meet("n3", 2, true, false, "a restart")
	meet("n2", 1, true, false, "another node")
	meet("n3", 1, false, true, "the run before the restart lives")
	meet("n3", 1, false, false, "the same")
	meet("n3", 2, false, true, "and so does that after it")

	fresh, twin := w.observe(serverAfterWipe("n3"), 1)
	assert.Equal(t, [2]bool{true, false}, [2]bool{fresh, twin}, "another directory is no clone")

	for i := range 100 {
		meet("n4", generation(9+i), true, false, "a node that restarts often")
		w.observe(serverOf(fmt.Sprint("invented-", i, "-", len(w.seen))), 1)
	}
	for i := range 10 * serversMax {
		w.observe(serverOf(fmt.Sprint("invented-", i)), 1)
	}
	assert.LessOrEqual(t, len(w.seen), serversMax)
	assert.LessOrEqual(t, len(w.seen[serverOf("n4")]), generationsMax)
}
