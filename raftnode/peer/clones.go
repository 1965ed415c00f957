package peer

import (
	"log/slog"
	"slices"
	"sync"
	"time"
)

const (
	// generationsMax bounds the generations remembered of a server: a clone shows within a few
	// connections.
	generationsMax = 8
	// serversMax bounds the nodes remembered: more than a cluster has, since callers may
	// invent ids.
	serversMax = 4 * nodesMax
)

// cloneDetector notices two live processes that run copies of one data directory: same name, same
// incarnation, so only their generations differ. A generation that is alive after another one
// connected can't have ended before that other began, as it would with a restart. What it sent
// before may arrive later:
//
//  1. a process sends the last message of a handshake, which is delayed on its way, and is killed;
//  2. the node is started again, and connects;
//  3. the message arrives.
//
// So only a handshake of which a part was sent here, and answered there, after the other was seen
// counts.
type cloneDetector struct {
	mu   sync.Mutex // guards seen and what it holds
	seen map[Server]sightings
}

// sightings are the generations of a server that have connected, the latest first, and when that
// was first seen.
type sightings struct {
	generations []generation
	since       time.Time
}

// observe records that a server has connected, and was alive at some time after alive. It reports
// whether its generation is new here, or whether it is one of those before the latest, so that the
// server has a clone.
func (t *cloneDetector) observe(id Server, current generation,
	alive time.Time) (fresh, cloned bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	known, met := t.seen[id]
	if met && (known.generations[0] == current || !alive.After(known.since)) {
		return false, false
	}
	if t.seen == nil || !met && len(t.seen) >= serversMax {
		t.seen = map[Server]sightings{}
	}
	at := slices.Index(known.generations, current)
	if at >= 0 {
		known.generations = slices.Delete(known.generations, at, at+1)
	}
	generations := slices.Insert(known.generations, 0, current)
	t.seen[id] = sightings{generations[:min(len(generations), generationsMax)], time.Now()}
	return at < 0, at >= 0
}

// checkClone raises the alarm when a node that was just met has a clone. A generation that is new
// here ends the connections of those before it. If the node was restarted they are dead. If not,
// this is a copy, and the original, which might have continued over its old connections forever,
// reconnects and is noticed.
func (n *Network) checkClone(met Answer, alive time.Time, address string) {
	fresh, cloned := n.clones.observe(met.Server, met.Generation, alive)
	if transport := n.openTransport(); fresh && transport != nil {
		transport.closeMatching(func(s *stream) bool {
			return s.remote.Server == met.Server && s.remote.Generation != met.Generation
		})
	}
	if cloned {
		n.log.Log(slog.LevelError, "clone "+met.Server.String(),
			"clone detected: two processes run as the same node from copies of one data "+
				"directory: they can vote twice and lose what was acknowledged. Stop the one "+
				"that is not at the node's address; to make it a node of its own, start it under "+
				"a name of its own, with an empty directory and --join", "node", met.Name,
			"incarnation", met.Incarnation, "this_one_at", address)
	}
}
