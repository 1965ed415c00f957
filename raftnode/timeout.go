package raftnode

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode/peer"
	"zamok/session"
)

// # Adaptive election timeouts
//
// All nodes have one timeout T: after T to 2T without a leader a follower campaigns, and a leader that no majority has
// answered for 2T steps down. Where messages are slow, a short T causes elections without need, until no node can lead;
// elsewhere a long T only makes a failover longer. So the leader measures, and T follows.
//
// A change takes effect while raft runs: it restarts no raft, moves no leadership and ends no stream. Raft reloads the
// timeouts of a follower and a candidate. It can't reload the lease of a leader, which may not exceed the heartbeat
// timeout of the same node. So raft always leads with the lease and the heartbeats of a short T, and the Transport
// makes the lease longer (peer.Transport.SetPatience).
//
// The leader calls the nodes that have announced another T, and each announces what it has then: there is no other
// agreement, and the next leader continues. For a moment nodes have different ones, which changes only when
// a node campaigns. T is recorded on each node's disk.

const (
	// timeoutMin and timeoutMax bound a measured T, which is a multiple of timeoutStep. An operator may choose another
	// one.
	timeoutMin, timeoutMax, timeoutStep = 250 * time.Millisecond, 2 * time.Second, 250 * time.Millisecond
	// timeoutFactor is how many round trips, with a pause of the leader each, fit into T: a new leader needs two to be
	// elected, each with a new connection.
	timeoutFactor = 5
	// pauseCheckInterval is how often a node checks whether it was kept from running.
	pauseCheckInterval = 50 * time.Millisecond
	// calm is how long a shorter T must suffice before it is chosen.
	calm = 5 * time.Minute
	// askTrips is how many round trips it takes to ask another node.
	askTrips = 2
)

// timeoutFor is the T, at least, for what was measured.
func timeoutFor(need time.Duration) time.Duration {
	steps := (need + timeoutStep - 1) / timeoutStep
	return min(max(steps*timeoutStep, timeoutMin), timeoutMax)
}

// leaseFor is how long a leader with this T continues without an answer from a majority: until all others must have
// begun to elect another one. To give up earlier helps nobody, and a leader that only reads their answers late leads on.
func leaseFor(t time.Duration) time.Duration { return 2 * t }

// Timeout is the T of a majority of the voters, as they announced it, or this node's if that is longer.
// A failover takes two to four times as long.
func (n *Node) Timeout() time.Duration { return time.Duration(n.known.Load()) }

// ttlTimeouts is a ttl of a session, in T. A failover takes two to four, and a session that renews each third has 0.6 of its
// ttl left: below this, most failovers end it.
const ttlTimeouts = 4

// LeastTTL is a ttl below which most failovers end a session now.
func (n *Node) LeastTTL() clock.Span {
	return max(ttlTimeouts*clock.FromDuration(n.Timeout()), fsm.TTLMin)
}

// shortTTLs is how many sessions had a shorter ttl, and when that was counted.
type shortTTLs struct {
	mu      sync.Mutex // held while they are counted
	counted time.Time
	count   int
}

// ShortTTLs is how many sessions have a shorter one. It looks at each of them, unless none can, at most once a second.
func (n *Node) ShortTTLs() int {
	n.short.mu.Lock()
	defer n.short.mu.Unlock()
	if now := time.Now(); now.Sub(n.short.counted) >= time.Second {
		n.short.count, n.short.counted = n.countShortTTLs(), now
	}
	return n.short.count
}

func (n *Node) countShortTTLs() (count int) {
	least, after := n.LeastTTL(), session.ID(0)
	for more := least > fsm.TTLMin; more; {
		n.View(func(m *fsm.Machine) {
			some := m.Sessions(after, shortTTLsRound)
			for _, s := range some {
				if after = s.ID; s.TTL < least {
					count++
				}
			}
			more = len(some) == shortTTLsRound
		})
	}
	return count
}

// shortTTLsRound is how many sessions are looked at in one read of the state machine.
const shortTTLsRound = 1000

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

// timeout is this node's T.
func (n *Node) timeout() time.Duration { return time.Duration(n.chosen.Load()) }

// setTimeout changes this node's T.
func (n *Node) setTimeout(in *instance, t time.Duration) {
	n.chosen.Store(int64(t))
	in.reloadTimeout()
}

// recordTimeout records T for the next start of this node, unless its operator has chosen it. It returns what it tried to
// record, so that a disk that takes nothing is asked once.
func (n *Node) recordTimeout(tried time.Duration) time.Duration {
	t := n.timeout()
	if n.cfg.ElectionTimeout != 0 || t == tried || tried == 0 && t == max(timeoutOf(n.store.Identity().Timeout), timeoutMin) {
		return t
	}
	if err := n.store.RecordTimeout(uint32(t / time.Millisecond)); err != nil {
		n.log.Warn("could not record the election timeout on disk", "error", err)
	}
	return t
}

// tuneTimeouts adapts T, if this node leads: first its own, since a leader with a shorter T sends heartbeats more often,
// then that of the others.
func (n *Node) tuneTimeouts(ctx context.Context, in *instance) {
	all, others := in.voters()
	defer func() { n.known.Store(int64(max(n.timeout(), ofMajority(all)))) }()
	l := in.leadership.Load()
	if l == nil || !n.queue.open.Load() {
		return
	}
	if t, reason := n.choose(l, all, others); t != n.timeout() {
		n.log.Info("changing the election timeout of the cluster", "to", t, "before", n.timeout(), "because", reason)
		l.calmSince = time.Now()
		n.setTimeout(in, t)
	}
	var calls sync.WaitGroup
	for _, v := range others {
		if t := n.timeout(); v.silent == 0 && v.timeout() != t {
			calls.Go(func() {
				if err := n.callNode(ctx, v.ID, v.Address, call{Timeout: uint32(t / time.Millisecond)}); err != nil {
					n.log.Debug("a node did not confirm the new election timeout", "node", v.name(), "timeout", t, "error", err)
				}
			})
		}
	}
	calls.Wait()
}

// choose is the T that this leader wants, and why. It rises at once, and falls to what has sufficed for a while.
func (n *Node) choose(l *leadership, all, others []voter) (t time.Duration, reason string) {
	now, t := time.Now(), n.timeout()
	fixed := n.cfg.ElectionTimeout
	for _, v := range others {
		fixed = max(fixed, timeoutOf(v.announced.ElectionTimeoutFixed))
	}
	trip, slow, stall := quorumTrip(others, voter.distance), quorumTrip(others, voter.slowness), n.stalls.Now(now)
	need := timeoutFactor * max(trip+stall, slow/2) // load counts half: a repeated round trip is at most a fifth of the lease
	reason = fmt.Sprintf("round trips of %v, repeatedly of %v, and pauses of this process of %v", trip.Round(time.Millisecond),
		slow.Round(time.Millisecond), stall.Round(time.Millisecond))
	switch ofOthers := ofMajority(all); {
	case fixed != 0: // of several the longest
		return fixed, fmt.Sprintf("--election-timeout is %v", fixed)
	case now.Sub(l.since) < calm && ofOthers > t: // of an earlier leader, since this one has not lowered it yet
		return ofOthers, "a majority has it"
	case len(others) == 0: // a single voter needs no answer
	case timeoutFor(need) > t:
		return timeoutFor(need), reason
	case timeoutFor(need+need/4) >= t:
		l.calmSince = now
	case now.Sub(l.calmSince) >= calm:
		return timeoutFor(need + need/4), reason
	}
	return t, reason
}

// quorumTrip is the round trip within which a majority, with this node, answers; 0 = fewer answer.
func quorumTrip(others []voter, of func(voter) time.Duration) time.Duration {
	var trips []time.Duration
	for _, v := range others {
		if v.silent == 0 {
			trips = append(trips, of(v))
		}
	}
	slices.Sort(trips)
	if quorum := (len(others) + 1) / 2; 0 < quorum && quorum <= len(trips) {
		return trips[quorum-1]
	}
	return 0
}

// handleRetune takes T from the leader.
func (n *Node) handleRetune(in *instance, t time.Duration) error {
	if t < electionMin || t > electionMax {
		return fmt.Errorf("%v is not between %v and %v", t, electionMin, electionMax)
	}
	n.setTimeout(in, t)
	n.wakeMaintenance() // to record and announce it
	return nil
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
// measure. They were asked twice, since one round may have met a pause.
func (n *Node) lengthenTimeout(in *instance, rounds ...[]peer.Reply) {
	if n.cfg.ElectionTimeout != 0 {
		return
	}
	trip := timeoutMax
	for _, replies := range rounds {
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
		trip = min(trip, quorumTrip(others, voter.distance)) // 0 if no majority answers
	}
	stall := n.stalls.Now(time.Now())
	if t := timeoutFor(timeoutFactor * (trip + stall)); trip > 0 && t > n.timeout() {
		n.log.Warn("leaders keep failing although a majority answers slowly; raising the election timeout of this node", "timeout", t,
			"before", n.timeout(), "round_trip", trip, "pause", stall)
		n.setTimeout(in, t)
	}
}
