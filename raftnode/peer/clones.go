package peer

import (
	"log/slog"
	"slices"
	"sync"
)

const (
	// generationsMax bounds the generations remembered of a server: a clone shows within a few connections.
	generationsMax = 8
	// serversMax bounds the nodes remembered: more than a cluster has, since callers may
	// invent ids.
	serversMax = 4 * nodesMax
)

// cloneDetector notices two live processes that run copies of one data directory: same name, same
// incarnation, so only their generations differ. A generation that connects again after another one did can't
// have ended before that other began, as it would with a restart.
type cloneDetector struct {
	mu   sync.Mutex              // guards seen and what it holds
	seen map[Server][]generation // the latest first
}

// observe notes that a server has connected. It reports whether its generation is new here, or whether it is
// one of those before the latest, so that the server has a clone.
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

// checkClone raises the alarm when a node that was just met has a clone. A generation that is new here ends
// the connections of those before it. If the node was restarted they are dead. If not, this is a copy, and
// the original, which might have continued over its old connections forever, reconnects and is noticed.
func (n *Network) checkClone(met Answer, address string) {
	fresh, cloned := n.clones.observe(met.Server, met.Generation)
	if transport := n.openTransport(); fresh && transport != nil {
		transport.closeMatching(func(s *stream) bool {
			return s.remote.Server == met.Server && s.remote.Generation != met.Generation
		})
	}
	if cloned {
		n.log.Log(slog.LevelError, "clone "+met.Server.String(), "clone detected: two processes run as the same node from copies of "+
			"one data directory: they can vote twice and lose what was acknowledged. Stop the one that is not at "+
			"the node's address; to make it a node of its own, start it under a name of its own, with an empty "+
			"directory and --join", "node", met.Name, "incarnation", met.Incarnation, "this_one_at", address)
	}
}
