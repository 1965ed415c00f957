package raftnode

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"zamok/raftnode/peer"
)

// # Adaptive election timeouts
//
// A node has one timeout T: after T to 2T without a leader it campaigns, and a leader that no majority has answered for
// T/2 steps down. Where messages are slow, or processes are kept from running, a short T causes elections without
// need, until no node can lead; elsewhere a long T only makes a failover longer. So a leader measures, and T follows.
//
// Raft takes another T/2 only when it restarts. So the leader asks one follower after the other to restart raft
// (nodecall.go), each of which then announces its T, and finally transfers the leadership to one of them. A node makes a
// snapshot before it restarts raft, so that it has little to replay. A leader starts with the T that it runs with, and asks
// the nodes that differ: there is no other agreement, and the next leader continues. T is in each node's announcement, and
// on its disk.

const (
	// timeoutMin and timeoutMax bound a measured T, which is a multiple of timeoutStep. An operator may choose another
	// one.
	timeoutMin, timeoutMax, timeoutStep = 250 * time.Millisecond, 2 * time.Second, 250 * time.Millisecond
	// timeoutFactor is how many round trips, with a pause of the leader each, fit into T: a leader steps down after half
	// of it, and a new one needs two round trips to be elected.
	timeoutFactor = 5
	// pauseCheckInterval is how often a node checks whether it was kept from running.
	pauseCheckInterval = 50 * time.Millisecond
	// calm is how long a shorter T must suffice before it is chosen: lengthening it again costs a failed leadership.
	calm = 5 * time.Minute
	// retuneMax is how long a follower has to restart raft before the next one is asked, and retuneAgain the pause before
	// one that did not is asked again.
	retuneMax, retuneAgain = 10 * time.Second, 2 * time.Minute
	// askTrips is how many round trips it takes to ask another node.
	askTrips = 2
	// retuneWriting is how long a write may have been going on when raft is restarted, which waits for the disk.
	retuneWriting = time.Second
)

// timeoutFor is the T for round trips, with pauses, of this length.
func timeoutFor(trip time.Duration) time.Duration {
	steps := (timeoutFactor*trip + timeoutStep - 1) / timeoutStep
	return min(max(steps*timeoutStep, timeoutMin), timeoutMax)
}

// Timeout is the T of a majority of the voters, as they announced it, or this node's if that is longer.
// A failover takes two to four times as long.
func (n *Node) Timeout() time.Duration { return time.Duration(n.known.Load()) }

// tuneTimeouts adapts this node's T, and, if it leads, that of the cluster.
func (n *Node) tuneTimeouts(ctx context.Context, in *instance) {
	all, others := in.voters()
	n.known.Store(int64(max(in.timeout, ofMajority(all))))
	state := in.raft.State()
	if (state == raft.Follower || state == raft.Candidate) && in.timeout != n.timeout() && n.canReopen() == nil && in.compact() {
		n.log.Info("restarting raft with a new election timeout", "timeout", n.timeout(), "before", in.timeout)
		n.keepTimeout(n.timeout())
		n.reopen(in)
		return
	}
	if l := in.leadership.Load(); l != nil && n.queue.open.Load() {
		n.tuneAll(ctx, in, l, others)
	}
}

// ofMajority is the T of a majority of the voters: the longest of them after leaving out a minority.
func ofMajority(voters []voter) time.Duration {
	var known []time.Duration
	for _, v := range voters {
		if v.timeout() > 0 {
			known = append(known, v.timeout())
		}
	}
	if len(known) == 0 {
		return 0
	}
	slices.Sort(known)
	return known[len(known)/2]
}

func timeoutOf(ms uint32) time.Duration { return time.Duration(ms) * time.Millisecond }

// timeout is the T that raft starts with next.
func (n *Node) timeout() time.Duration { return time.Duration(n.chosen.Load()) }

// keepTimeout chooses T for the next start of raft, and records it for the next one of this node, unless the operator has
// chosen it.
func (n *Node) keepTimeout(t time.Duration) {
	n.chosen.Store(int64(t))
	if n.cfg.ElectionTimeout != 0 || t == max(timeoutOf(n.store.Identity().Timeout), timeoutMin) {
		return
	}
	if err := n.store.RecordTimeout(uint32(t / time.Millisecond)); err != nil {
		n.log.Warn("could not record the election timeout on disk", "error", err)
	}
}

// tuneAll brings all nodes to this leader's target, one step for each call.
func (n *Node) tuneAll(ctx context.Context, in *instance, l *leadership, others []voter) {
	fits := func(v voter) bool { return v.timeout() == l.target }
	var next *voter
	answering := 1 // this node
	settled, waiting, opening := in.timeout == l.target, false, false
	for i, v := range others {
		if v.silent == 0 {
			answering++
		}
		if fits(v) {
			continue
		}
		last, asked := l.asked[v.ID]
		ago := time.Since(last)                                          // very long if it was not asked
		settled = settled && (v.silent > 0 || asked && ago >= retuneMax) // a node may be unable to
		waiting = waiting || ago < retuneMax
		opening = opening || v.silent > 0 && ago < retuneAgain
		if next == nil && v.silent == 0 && ago >= retuneAgain {
			next = &others[i]
		}
	}
	if n.setTarget(in, l, others, settled) || waiting {
		return // until the next check; one at a time, because a node that restarts raft may be silent
	}
	// The others and this node must be a majority without the one that is asked. If they are not, T may be too short for that.
	if spared := 2*(answering-1) > len(others)+1 || l.target > in.timeout && !opening; next != nil && spared {
		l.asked[next.ID] = time.Now()
		if err := n.callNode(ctx, next.ID, next.Address, call{Timeout: uint32(l.target / time.Millisecond)}); err != nil {
			n.log.Info("a node did not confirm the new election timeout", "node", next.name(), "timeout", l.target, "error", err)
		}
		return
	}
	if in.timeout == l.target || n.canReopen() != nil || !in.compact() {
		return
	}
	n.stepAside(ctx, in, fits, func(to string) {
		n.keepTimeout(l.target)
		n.log.Info("transferring leadership to restart raft with a new election timeout", "to", to, "timeout", l.target, "before", in.timeout)
	})
}

// setTarget updates the target, and reports whether it changed.
func (n *Node) setTarget(in *instance, l *leadership, others []voter, settled bool) bool {
	now, target := time.Now(), l.target
	fixed := n.cfg.ElectionTimeout
	for _, v := range others {
		fixed = max(fixed, timeoutOf(v.announced.ElectionTimeoutFixed))
	}
	trip, stall := quorumTrip(others), n.stalls.Now(now)
	need := trip + stall
	reason := fmt.Sprintf("round trips of %v, pauses of this process of %v", trip.Round(time.Millisecond), stall.Round(time.Millisecond))
	switch {
	case fixed != 0: // of several the longest
		target, reason = max(fixed, halfStep(in.timeout, time.Millisecond)), fmt.Sprintf("--election-timeout is %v", fixed)
	case len(others) == 0: // a single voter needs no answer
	case timeoutFor(need) > target:
		target = timeoutFor(need + stall/2) // the next pause may be longer
	case timeoutFor(need+need/4) >= target || !settled:
		l.calmSince = now
	case now.Sub(l.calmSince) >= calm:
		target = max(timeoutFor(need+need/4), halfStep(in.timeout, timeoutStep))
	}
	if target == l.target {
		return false
	}
	n.log.Info("changing the election timeout of the cluster", "to", target, "before", l.target, "because", reason)
	l.target, l.calmSince = target, now
	clear(l.asked)
	return true
}

// halfStep is the shortest T that a leader with timeout t can bring the others to: it sends at a tenth of its heartbeat
// timeout, which must not be below t/2. It is a multiple of step, unless t is shorter.
func halfStep(t, step time.Duration) time.Duration {
	return min((t/2+step-1)/step*step, t)
}

// quorumTrip is the round trip within which a majority, with this node, answers; 0 = fewer answer.
func quorumTrip(others []voter) time.Duration {
	var trips []time.Duration
	for _, v := range others {
		if v.silent == 0 {
			trips = append(trips, v.trip)
		}
	}
	slices.Sort(trips)
	if quorum := (len(others) + 1) / 2; 0 < quorum && quorum <= len(trips) {
		return trips[quorum-1]
	}
	return 0
}

// handleRetune accepts a T from the leader.
func (n *Node) handleRetune(target time.Duration) error {
	if target < electionMin || target > electionMax {
		return fmt.Errorf("%v is not between %v and %v", target, electionMin, electionMax)
	}
	if err := n.canReopen(); err != nil {
		return err
	}
	n.chosen.Store(int64(target))
	n.wakeMaintenance()
	return nil
}

// canReopen is why raft can't be restarted now, or nil. A restart needs a working disk.
func (n *Node) canReopen() error {
	if n.state.restoring.Load() > 0 {
		return errors.New("a snapshot is being read")
	}
	if w, writing := n.store.Writing(); writing && time.Since(w.Since) > retuneWriting {
		return fmt.Errorf("a write has been going on for %v", time.Since(w.Since))
	}
	return n.store.CheckSpace()
}

// measurePauses measures how long this process is kept from running.
func (n *Node) measurePauses() {
	tick := time.NewTicker(pauseCheckInterval) // it allocates nothing, and this loop never rests
	defer tick.Stop()
	for last := n.cfg.Source.Now(); ; {
		select {
		case <-n.life.Done():
			return
		case <-tick.C:
		}
		now := n.cfg.Source.Now()
		n.stalls.Add(time.Now(), now.Since(last).Duration()-pauseCheckInterval)
		last = now
	}
}

// lengthenTimeout lengthens this node's T if that is too short for the round trips of a majority of the voters, which
// answered while no leader lasted: with messages slower than raft's timeouts no node could lead, and so no leader would
// measure.
func (n *Node) lengthenTimeout(in *instance, replies []peer.Reply) {
	if n.cfg.ElectionTimeout != 0 {
		return
	}
	_, others := in.voters()
	for i := range others {
		v := &others[i]
		v.silent = leaderlessMax
		for _, reply := range replies {
			if reply.Err == nil && reply.Answer.Name == v.name() {
				v.trip, v.silent = reply.Took/askTrips, 0
			}
		}
	}
	trip, stall := quorumTrip(others), n.stalls.Now(time.Now())
	if t := timeoutFor(trip + stall); trip > 0 && t > n.timeout() {
		n.log.Warn("leaders keep failing although a majority answers slowly; raising the election timeout of this node", "timeout", t,
			"before", n.timeout(), "round_trip", trip, "pause", stall)
		n.chosen.Store(int64(t))
	}
}
