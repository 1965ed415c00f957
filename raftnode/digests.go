package raftnode

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"zamok/fsm"
)

const (
	// A leader asks for digests once so much time has passed since it saw the latest question and
	// the state machine has counted so many indexes. So what makes states differ is found within
	// 4096 commands or 5 minutes, whichever is later, and an idle cluster stays silent.
	digestInterval = 100 * time.Second
	digestDistance = 2048
	// digestRetry is how long a leader waits for its question to be applied.
	digestRetry = 10 * time.Second
	// digestsKept is for how many questions reports are kept: a follower's comes late.
	digestsKept = 16
)

// digests compares the digests of the nodes after the same entry. The state machine's lock guards
// it.
//
// The leader puts a question into the log. A node freezes the state that it has after that entry.
// The maintenance loop hashes it, and puts a report into the log. Raft's index names the question,
// because nodes count raft's indexes alike, whatever their states are.
type digests struct {
	points   []digestPoint // by their indexes
	question question      // the latest
	todo     fsm.Digest    // this node's latest report, until it is in the log; Index 0 = none
}

// question is the latest question that this node applied.
type question struct {
	asked time.Time   // when it was applied
	index uint64      // the state machine's
	entry uint64      // raft's
	state *fsm.Frozen // after that entry, until it is hashed
}

// digestPoint is where digests are compared: after an entry with a question.
type digestPoint struct {
	index  uint64 // raft's
	mine   uint64
	since  time.Time         // mine is known
	known  bool              // mine is, and the point was not reported as different
	byNode map[string]uint64 // from applied entries, by node
	// outvoted: a majority of the voters agree among themselves, and this node differs. Set by
	// compare.
	outvoted bool
}

// ask reports whether a leader should ask now.
func (q *question) ask(now time.Time, index uint64) bool {
	isDue := now.Sub(q.asked) >= digestInterval && index-q.index >= digestDistance
	if isDue {
		q.asked = now.Add(digestRetry - digestInterval) // until it is applied
	}
	return isDue
}

// apply records a question, or a report of one before, of the entry with an index of raft's. Of
// several questions that come at once, as when a log is replayed, the latest is answered.
func (d *digests) apply(entry uint64, c *fsm.Digest, m *fsm.Machine) {
	switch {
	case c.Index == 0 && entry != d.question.entry:
		d.question = question{time.Now(), m.Stamp().Index, entry, m.Freeze()}
	case 0 < c.Index && c.Index < entry:
		d.at(c.Index).byNode[c.Node] = c.Value
	}
}

// answer records this node's own digest after the entry with a question.
func (d *digests) answer(self string, entry, digest uint64) {
	p := d.at(entry)
	p.mine, p.since, p.known = digest, time.Now(), true
	d.todo = fsm.Digest{Node: self, Index: entry, Value: digest}
}

// at returns the point of an index of raft's. One more than are kept displaces the oldest.
func (d *digests) at(index uint64) *digestPoint {
	i, found := slices.BinarySearchFunc(d.points, index,
		func(p digestPoint, index uint64) int { return cmp.Compare(p.index, index) })
	if !found {
		if len(d.points) == digestsKept && i > 0 {
			d.points, i = slices.Delete(d.points, 0, 1), i-1
		}
		p := digestPoint{index: index, byNode: make(map[string]uint64)}
		if len(d.points) == digestsKept {
			return &p // older than all that are kept
		}
		d.points = slices.Insert(d.points, i, p)
	}
	return &d.points[i]
}

// compare returns a point at which voters disagree, with their digests only, each point once; nil =
// there is none. A minority waits for the reports of all, but not longer than to the next question.
// What this node, self, reported before its state was made anew does not count.
func (d *digests) compare(voters servers, self string) *digestPoint {
	for i := range d.points {
		p := &d.points[i]
		if !p.known {
			continue
		}
		found := digestPoint{index: p.index, mine: p.mine, byNode: maps.Clone(p.byNode)}
		found.byNode[self] = p.mine
		maps.DeleteFunc(found.byNode,
			func(name string, _ uint64) bool { return voters.named(name) == nil })
		votes, differs := make(map[uint64]int), false
		for _, value := range found.byNode {
			votes[value]++
			found.outvoted = found.outvoted || value != p.mine && votes[value] > len(voters)/2
			differs = differs || value != p.mine
		}
		if differs && (found.outvoted || len(found.byNode) == len(voters) ||
			time.Since(p.since) >= digestInterval) {
			p.known = false // reported
			return &found
		}
	}
	return nil
}

// exchangeDigests asks for digests if this node leads, hashes the state that was asked for, reports
// it until that is in the log, and returns digests that differ; see digests.compare.
func (a *announcer) exchangeDigests(ctx context.Context, run *raftRun) *digestPoint {
	all, mayAsk := run.servers(), a.proposer.leads()
	voters := all.voters()
	var state *fsm.Frozen
	a.state.mu.Lock()
	d := a.state.digests
	entry := d.question.entry
	if run.hasReplayed() { // before, there may be a later question
		state, d.question.state = d.question.state, nil
	}
	asks := mayAsk && len(all) > 1 && d.question.ask(time.Now(), a.state.machine.Stamp().Index)
	a.state.mu.Unlock()
	if state != nil {
		digest := state.Digest()
		a.state.mu.Lock()
		d.answer(a.cfg.ID, entry, digest) // in vain if a snapshot has replaced the state
		a.state.mu.Unlock()
	}
	a.state.mu.Lock()
	todo, differing := a.state.digests.todo, a.state.digests.compare(voters, a.cfg.ID)
	a.state.mu.Unlock()
	if asks {
		_ = a.send(ctx, run, &fsm.Digest{Node: a.cfg.ID})
	}
	if todo.Index != 0 && a.send(ctx, run, &todo) == nil {
		a.state.mu.Lock()
		if d := a.state.digests; d.todo == todo {
			d.todo = fsm.Digest{}
		}
		a.state.mu.Unlock()
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
