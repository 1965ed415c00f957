package raftnode

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"zamok/fsm"
)

const (
	// digestEvery is the distance of the indexes at which a node reports its digest.
	digestEvery = 4096
	// digestsKept is for how many of those points digests are kept: a follower's comes late.
	digestsKept = 16
)

// digests compares the digests of the nodes at the same index. The state machine's lock guards it.
type digests struct {
	points []digestPoint
	todo   []fsm.Digest // this node's own, not reported yet
}

// digestPoint is where digests are compared: after the entry that took the state machine to index,
// a multiple of digestEvery, or past it. A node that counts indexes differently gets there with
// another entry, and so has another digest there: the difference is found.
type digestPoint struct {
	index  uint64
	mine   uint64
	known  bool              // mine is
	byNode map[string]uint64 // from applied entries, by node
	// outvoted: a majority of the voters agree among themselves, and this node differs. Set by
	// compare.
	outvoted bool
}

// applied records this node's digest after an entry that took the index from before past a multiple
// of digestEvery, which the same entry does on every node. A new state machine has no digest to
// report.
func (d *digests) applied(before, after, digest uint64) {
	if before == 0 || before/digestEvery == after/digestEvery {
		return
	}
	p := d.at(after / digestEvery * digestEvery)
	p.mine, p.known = digest, true
	d.todo = append(d.todo, fsm.Digest{Index: p.index, Value: digest})
}

// at returns the point of an index; a new one replaces the oldest.
func (d *digests) at(index uint64) *digestPoint {
	if i := slices.IndexFunc(d.points,
		func(p digestPoint) bool { return p.index == index }); i >= 0 {
		return &d.points[i]
	}
	if len(d.points) == digestsKept {
		d.points = slices.Delete(d.points, 0, 1)
	}
	d.points = append(d.points, digestPoint{index: index, byNode: make(map[string]uint64)})
	return &d.points[len(d.points)-1]
}

// compare returns a point at which voters disagree, with their digests only, each point once; nil =
// there is none.
func (d *digests) compare(voters servers) *digestPoint {
	for i := range d.points {
		p := &d.points[i]
		if !p.known {
			continue
		}
		found := digestPoint{index: p.index, mine: p.mine, byNode: maps.Clone(p.byNode)}
		maps.DeleteFunc(found.byNode,
			func(name string, _ uint64) bool { return voters.named(name) == nil })
		votes, differs := make(map[uint64]int), false
		for _, value := range found.byNode {
			votes[value]++
			found.outvoted = found.outvoted || value != p.mine && votes[value] > len(voters)/2
			differs = differs || value != p.mine
		}
		if differs && (found.outvoted || len(found.byNode) == len(voters)) {
			p.known = false // reported
			return &found
		}
	}
	return nil
}

// exchangeDigests reports this node's digests and returns those that were reported and differ; see
// digests.compare.
func (a *announcer) exchangeDigests(ctx context.Context, run *raftRun) *digestPoint {
	voters := run.servers().voters()
	a.state.mu.Lock()
	todo, differing := a.state.digests.todo, a.state.digests.compare(voters)
	a.state.digests.todo = nil
	a.state.mu.Unlock()
	for _, own := range todo {
		own.Node = a.cfg.ID
		a.send(ctx, run, &own)
	}
	return differing
}

// endIfOutvoted ends the process if a majority agrees on another digest than this node's.
func (n *Node) endIfOutvoted(run *raftRun, d *digestPoint) {
	if d == nil {
		return
	}
	n.log.Error(
		"ALARM: state digests of the nodes differ: a node computed another state from the same log",
		"index", d.index, "mine", d.mine, "by_node", d.byNode, "outvoted", d.outvoted)
	if !d.outvoted {
		return // no majority differs from this node: stopping would not help
	}
	n.handover.leave(run)
	n.fatal(fmt.Errorf("%w at index %d: a majority agrees on another digest than %x: %v",
		ErrDiverged, d.index, d.mine, d.byNode))
}

// ErrDiverged ends the process of a node whose state differs from a majority's.
var ErrDiverged = errors.New(
	"raftnode: the state of this node has diverged from that of a majority; start it with " +
		"another, empty data directory and --join, which replaces this one")
