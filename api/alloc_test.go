package api

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"zamok/clock"
)

// A whole acquire and drop, client's side (a plain gRPC stream), wire, validation, node and
// machine, with the log in memory. It is not exact, since streams and timers allocate as they
// please: the ceiling is a little above what is measured. Six of them came with the question, in
// each append, whether it may be pending: raft allocates its answer about the configuration.
func TestLockingAllocatesNoMore(t *testing.T) {
	if testing.Short() {
		t.Skip("under the race detector, which runs the short tests, pools forget what they hold")
	}
	const ceiling = 224
	n := startAlone(t)
	w := openStream(t, call(t, n), settings(clock.Minute))
	ticket := uint64(0)
	pair := func() {
		ticket++
		w.send(exclusive(ticket, "alloc", 0))
		w.change()
		w.send(drop(ticket))
		w.change()
		w.AckedThrough = ticket
	}
	for range 100 {
		pair()
	}
	each := testing.AllocsPerRun(200, pair)
	for range 4 { // on a busy machine fewer messages share a frame
		each = min(each, testing.AllocsPerRun(200, pair))
	}
	t.Logf("%.0f allocations", each)
	assert.LessOrEqual(t, each, float64(ceiling))
}
