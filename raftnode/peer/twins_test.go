package peer

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestTwins(t *testing.T) {
	var w twins
	meet := func(name string, met run, wantFresh, wantTwin bool, why string) {
		t.Helper()
		fresh, twin := w.note(serverOf(name), met)
		assert.Equal(t, [2]bool{wantFresh, wantTwin}, [2]bool{fresh, twin}, why)
	}
	meet("n3", run{1}, true, false, "the first")
	meet("n3", run{1}, false, false, "the same")
	meet("n3", run{2}, true, false, "a restart")
	meet("n2", run{1}, true, false, "another node")
	meet("n3", run{1}, false, true, "the run before the restart lives")
	meet("n3", run{1}, false, false, "the same")
	meet("n3", run{2}, false, true, "and so does that after it")

	fresh, twin := w.note(serverAgain("n3"), run{1})
	assert.Equal(t, [2]bool{true, false}, [2]bool{fresh, twin}, "another directory is no twin")

	for i := range 100 {
		meet("n4", run{9, byte(i)}, true, false, "a node that restarts often")
		w.note(serverOf(fmt.Sprint("invented-", i, "-", len(w.seen))), run{1})
	}
	for i := range 10 * sightingsMax {
		w.note(serverOf(fmt.Sprint("invented-", i)), run{1})
	}
	assert.LessOrEqual(t, len(w.seen), sightingsMax)
	assert.LessOrEqual(t, len(w.seen[serverOf("n4")]), runsMax)
}
