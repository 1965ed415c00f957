package peer

import (
	"slices"
	"sync"
)

const (
	// generationsMax bounds the former runs remembered per node: a clone shows within a few connections.
	generationsMax = 8
	// sightingsMax bounds the nodes remembered: more than a cluster has, since callers may
	// invent ids.
	sightingsMax = 4 * nodesMax
)

// cloneDetector notices two live processes that run copies of one data directory: same name, same
// incarnation, so nothing tells them apart but their runs. A run that shows itself again after
// another one did can't have ended before that other began, as it would with a restart.
type cloneDetector struct {
	mu   sync.Mutex              // guards seen and what it holds
	seen map[Server][]generation // the latest run first
}

// observe takes down that a run of a server was met. It reports whether this is another run than those
// known before, or one of those, so that the node has a clone.
func (t *cloneDetector) observe(id Server, met generation) (fresh, twin bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	runs := t.seen[id]
	if len(runs) > 0 && runs[0] == met {
		return false, false
	}
	if t.seen == nil || len(runs) == 0 && len(t.seen) >= sightingsMax {
		t.seen = map[Server][]generation{}
	}
	if at := slices.Index(runs, met); at >= 0 {
		twin = true
		runs = slices.Delete(runs, at, at+1)
	}
	runs = slices.Insert(runs, 0, met)
	t.seen[id] = runs[:min(len(runs), generationsMax)]
	return !twin, twin
}
