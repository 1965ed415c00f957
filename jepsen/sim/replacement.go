package sim

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"zamok/client"
	"zamok/fsm"
	"zamok/jepsen/workload"
	"zamok/raftnode/store"
)

// replacement is a node whose disk was lost, and the one that replaces it: under its name, or under
// a new one after the lost one was removed.
type replacement struct {
	mu       sync.Mutex // one at a time; guards what follows
	old, new *Node      // nil = none is under way
	serial   int
	rejoined map[string]bool // names that have come back: a cluster takes one back once in ten minutes
}

// replaceNode loses a node with its disk, and has the operator replace it. What faults prevent now
// is done after they have ended.
func (i *injection) replaceNode() bool {
	r := &i.replacement
	if !r.mu.TryLock() {
		return false
	}
	defer r.mu.Unlock()
	if r.old == nil {
		// A node that owes something waits for each voter, and this one does not come back.
		i.sim.noneTorn.Store(true)
		if i.any(func(d *Disk) bool { owes, _ := d.owes(); return owes }) {
			i.sim.noneTorn.Store(false)
			return false
		}
		var cluster store.ID
		i.a.View(func(m *fsm.Machine) { cluster = store.ID(m.Cluster()) })
		if cluster == (store.ID{}) {
			i.sim.noneTorn.Store(false)
			return false // it is down, or has just started and has not read its log yet
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
	}
	return i.finishReplacement(i.ctx)
}

// finishReplacement has the operator do what is left to do, until it is done or ctx ends.
func (f *Nemesis) finishReplacement(ctx context.Context) bool {
	r := &f.replacement
	for ; ctx.Err() == nil; workload.Sleep(ctx, 300*time.Millisecond) {
		op := f.load.operator.running()
		members, _, err := op.Members(ctx)
		isMember := slices.ContainsFunc(members, func(m client.Member) bool { return m.ID == r.old.ID })
		limited, cancel := context.WithTimeout(ctx, callTimeout)
		switch {
		case err != nil:
		case r.new.ID != r.old.ID && isMember:
			err = op.Remove(limited, r.old.ID)
		case r.new.latest() == nil:
			r.new.StartProcess()
		case !r.new.isVoter():
			err = op.Join(limited, r.new.ID, r.new.Address())
		default:
			f.sim.Trace.Note("op", "%s replaced %s", r.new.ID, r.old.ID)
			r.old, r.new = nil, nil
			f.sim.noneTorn.Store(false)
			cancel()
			return true
		}
		cancel()
		if err != nil {
			f.sim.Trace.Note("op", "%v", err)
		}
	}
	return false
}

// isVoter reports whether the node runs and knows that it has a vote.
func (n *Node) isVoter() bool {
	up := n.Running()
	return up != nil && up.Voter()
}
