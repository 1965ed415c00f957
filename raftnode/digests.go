package raftnode

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/hashicorp/raft"

	"zamok/fsm"
	"zamok/raftnode/peer"
)

const (
	// digestEvery is the distance of the indexes at which a node reports its digest.
	digestEvery = 4096
	// digestsKept is for how many of those points reports are kept: a follower's comes late.
	digestsKept = 16
)

// digests compares the digests of the nodes at the same index.
type digests struct {
	mu     sync.Mutex
	last   uint64 // the index up to which entries were seen
	points []digestPoint
	todo   []fsm.Digest // this node's own, not reported yet
}

// digestPoint is where digests are compared: after the entry that took the state machine to index, a multiple of
// digestEvery, or past it. A node that counts indexes differently gets there with another entry, and so has another
// digest there: the difference is found.
type digestPoint struct {
	index   uint64
	mine    uint64
	known   bool              // mine is
	reports map[string]uint64 // by node
	// outvoted: a majority of the voters agree among themselves, and this node differs. Set by compare.
	outvoted bool
}

func (d *digests) reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last, d.points, d.todo = 0, nil, nil
}

// applied notes this node's digest whenever the index passes a multiple of digestEvery, which it does with the same entry
// on every node.
func (d *digests) applied(a fsm.Applied, digest uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	passed := a.Stamp.Index/digestEvery != d.last/digestEvery && d.last != 0
	d.last = a.Stamp.Index
	if passed {
		p := d.at(a.Stamp.Index / digestEvery * digestEvery)
		p.mine, p.known = digest, true
		d.todo = append(d.todo, fsm.Digest{Index: p.index, Value: digest})
	}
}

func (d *digests) reported(r *fsm.Digest) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at(r.Index).reports[r.Node] = r.Value
}

// at returns the point of an index; a new one replaces the oldest.
func (d *digests) at(index uint64) *digestPoint {
	if i := slices.IndexFunc(d.points, func(p digestPoint) bool { return p.index == index }); i >= 0 {
		return &d.points[i]
	}
	if len(d.points) == digestsKept {
		d.points = slices.Delete(d.points, 0, 1)
	}
	d.points = append(d.points, digestPoint{index: index, reports: make(map[string]uint64)})
	return &d.points[len(d.points)-1]
}

// toReport returns the digests that this node has not reported yet.
func (d *digests) toReport() []fsm.Digest {
	d.mu.Lock()
	defer d.mu.Unlock()
	todo := d.todo
	d.todo = nil
	return todo
}

// compare returns a point at which voters disagree, with their reports only, each point once; nil = there is none.
func (d *digests) compare(voters servers) *digestPoint {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.points {
		p := &d.points[i]
		if !p.known {
			continue
		}
		found := digestPoint{index: p.index, mine: p.mine, reports: make(map[string]uint64)}
		votes, differs := make(map[uint64]int), false
		for _, v := range voters {
			name := peer.NameOf(v.ID)
			if value, ok := p.reports[name]; ok {
				found.reports[name] = value
				votes[value]++
				found.outvoted = found.outvoted || value != p.mine && votes[value] > len(voters)/2
				differs = differs || value != p.mine
			}
		}
		if differs && (found.outvoted || len(found.reports) == len(voters)) {
			p.known = false // reported
			return &found
		}
	}
	return nil
}

// checkDigests compares the reported digests.
func (n *Node) checkDigests(in *instance) {
	d := n.digests.compare(in.servers().voters())
	if d == nil {
		return
	}
	n.log.Error("ALARM: state digests of the nodes differ: a node computed another state from the same log", "index", d.index, "mine", d.mine, "reports", d.reports, "outvoted", d.outvoted)
	if !d.outvoted {
		return // no majority differs from this node: stopping would not help
	}
	if in.raft.State() == raft.Leader {
		in.leave()
	}
	n.fatal(fmt.Errorf("%w at index %d: a majority agrees on another digest than %x: %v", ErrDiverged, d.index, d.mine, d.reports))
}

// ErrDiverged ends the process of a node whose state differs from a majority's.
var ErrDiverged = errors.New("raftnode: the state of this node has diverged from that of a majority; start it with another, empty data directory and --join, which replaces this one")
