package sim

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"zamok/client/admin"
	"zamok/fsm"
	"zamok/jepsen/workload"
	"zamok/raftnode/store"
)

// replacement is a node whose disk was lost, and the one that replaces it: under its name, or under
// a new name after the lost node was removed.
type replacement struct {
	mu       sync.Mutex // held during a replacement; guards what follows
	old, new *Node      // nil = none is in progress
	serial   int
	// names that were used again: a cluster allows that once in ten minutes
	rejoined map[string]bool
}

// replaceNode kills a node whose disk is lost, and lets the operator replace it. If faults prevent
// that now, it is done after they have ended.
func (i *injection) replaceNode() bool {
	r := &i.replacement
	if !r.mu.TryLock() {
		return false
	}
	defer r.mu.Unlock()
	if r.old == nil {
		// A node that owes something waits for each voter, but this voter will not come back.
		i.sim.noneTorn.Store(true)
		if i.any(func(d *Disk) bool { owes, _ := d.owes(); return owes }) {
			i.sim.noneTorn.Store(false)
			return false
		}
		var cluster store.ID
		i.a.View(func(m *fsm.Machine) { cluster = store.ID(m.Cluster()) })
		if cluster == (store.ID{}) {
			i.sim.noneTorn.Store(false)
			return false // it is down, or has not read its log yet
		}
		id := i.a.ID
		if i.IntN(2) == 0 || r.rejoined[id] {
			r.serial++
			id = fmt.Sprintf("n%d", len(i.sim.InitialMembers())+r.serial)
		} else {
			r.rejoined[id] = true
		}
		r.old, r.new = i.a, i.sim.Replace(i.a, id, cluster)
		i.trace("%s by %s", r.old.ID, r.new.ID)
		r.old.Kill()
		i.setCalmFrom(time.Now().Add(time.Minute))
		defer i.setCalmFrom(time.Time{})
	}
	return i.finishReplacement(i.ctx)
}

// cutTail damages the end of a node's log while the power of some others fails. All other nodes
// must have what they had acknowledged.
func (i *injection) cutTail(others ...*Node) bool {
	r := &i.replacement
	if !r.mu.TryLock() {
		return false
	}
	defer r.mu.Unlock()
	damaged := func(d *Disk) bool {
		_, damaged := d.owes()
		return damaged
	}
	if r.old != nil || i.a.Running() == nil || i.any(damaged) {
		return false
	}
	i.end((*Node).LosePower, others...)
	i.trace("%s", i.a.ID)
	i.delayRestart(i.a, i.lasts)
	i.a.CutTail(uint64(1 + i.IntN(5)))
	return true
}

// any reports whether a condition holds for the disk of any member.
func (f *Nemesis) any(condition func(*Disk) bool) bool {
	return slices.ContainsFunc(f.sim.Members(), func(n *Node) bool { return condition(n.Disk) })
}

// finishReplacement lets the operator make the remaining steps, until they are done or ctx ends.
func (f *Nemesis) finishReplacement(ctx context.Context) bool {
	r := &f.replacement
	for ; ctx.Err() == nil; workload.Sleep(ctx, 300*time.Millisecond) {
		op := f.load.operator.running().admin()
		members, _, err := op.Members(ctx)
		isMember := slices.ContainsFunc(members,
			func(m admin.Member) bool { return m.ID == r.old.ID })
		bounded, cancel := context.WithTimeout(ctx, callTimeout)
		switch {
		case err != nil:
		case r.new.ID != r.old.ID && isMember:
			err = op.Remove(bounded, r.old.ID)
		case r.new.latest() == nil:
			r.new.StartProcess()
		case !r.new.isVoter():
			err = op.Join(bounded, r.new.ID, r.new.Address())
		default:
			f.sim.Trace.Logf("op", "%s replaced %s", r.new.ID, r.old.ID)
			r.old, r.new = nil, nil
			f.sim.noneTorn.Store(false)
			cancel()
			return true
		}
		cancel()
		if err != nil {
			f.sim.Trace.Logf("op", "%v", err)
		}
	}
	return false
}

// calm reports whether a node has been waiting for its replacement for so long that the others are
// left in peace. A leader replaces a node that it has not heard for 30 s, and few leaders lead for
// that long among faults; meanwhile other kinds of faults are not possible.
func (f *Nemesis) calm() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.calmFrom.IsZero() && time.Now().After(f.calmFrom)
}

func (f *Nemesis) setCalmFrom(at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calmFrom = at
}

// isVoter reports whether the node runs and knows that it has a vote.
func (n *Node) isVoter() bool {
	up := n.Running()
	return up != nil && up.Voter()
}
