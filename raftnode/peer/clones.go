package peer

import (
	"slices"
	"sync"
)

const (
	// generationsMax bounds the former runs remembered per node: a clone shows within a few connections.
	generationsMax = 8
	// serversMax bounds the nodes remembered: more than a cluster has, since callers may
	// invent ids.
	serversMax = 4 * nodesMax
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
func (t *cloneDetector) observe(id Server, current generation) (fresh, cloned bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	generations := t.seen[id]
	if len(generations) > 0 && generations[0] == current {
		return false, false
	}
	if t.seen == nil || len(generations) == 0 && len(t.seen) >= serversMax {
		t.seen = map[Server][]generation{}
	}
	if at := slices.Index(generations, current); at >= 0 {
		cloned = true
		generations = slices.Delete(generations, at, at+1)
	}
	generations = slices.Insert(generations, 0, current)
	t.seen[id] = generations[:min(len(generations), generationsMax)]
	return !cloned, cloned
}
