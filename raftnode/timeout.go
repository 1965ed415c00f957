package raftnode

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode/peer"
	"zamok/session"
)

// # Adaptive election timeouts
//
// All nodes have one timeout T: after T to 2T without a leader a follower campaigns, and a leader
// to which no majority has responded for 2T steps down. Where messages are slow, a short T causes
// needless elections, until no node can lead. Elsewhere a long T only makes a failover longer. So
// the leader measures round trips, and T follows.
//
// A change takes effect while raft runs: it restarts no raft, moves no leadership and ends no
// stream. Raft reloads the timeouts of a follower and a candidate. It can't reload the lease of a
// leader, which may not exceed the heartbeat timeout of the same node. So raft always leads with
// the lease and the heartbeats of a short T, and the Transport makes the lease longer
// (peer.Transport.SetLeaseExtension).
//
// The leader calls the nodes that have announced another T, and each then announces its new one.
// There is no other agreement, and the next leader continues. For a moment the nodes have different
// timeouts, which affects only when a node campaigns. T is recorded on each node's disk.

const (
	// timeoutMin and timeoutMax bound a measured T, which is a multiple of timeoutStep. An operator
	// may choose another one.
	timeoutMin, timeoutMax, timeoutStep = 250 * time.Millisecond, 2 * time.Second,
		250 * time.Millisecond
	// timeoutFactor is how many round trips, with a pause of the leader each, fit into T: a new
	// leader needs two to be elected, each with a new connection.
	timeoutFactor = 5
	// pauseCheckInterval is how often a node checks whether it was kept from running.
	pauseCheckInterval = 50 * time.Millisecond
	// calm is how long a shorter T must suffice before it is chosen.
	calm = 5 * time.Minute
	// askTrips is how many round trips it takes to ask another node.
	askTrips = 2
)

// timing is this node's T. A leader chooses the one of all nodes (choose). Each node keeps its own.
type timing struct {
	*base
	ns atomic.Int64 // T of this node, in ns
	// ofMajority is the T of a majority of the nodes with a vote, or this node's if that is longer,
	// in ns.
	ofMajority atomic.Int64
	pauses     peer.Repeated // how long this process was kept from running
	recorded   time.Duration // what record tried to record last; of the maintenance loop
}

// begin sets T for the start of this node: as its operator has chosen it, or as the disk has it.
func (tm *timing) begin() {
	t := cmp.Or(tm.cfg.ElectionTimeout, timeoutOf(tm.store.Identity().Timeout), timeoutMin)
	tm.ns.Store(int64(t))
	tm.ofMajority.Store(int64(t))
}

// timeoutFor is the T, at least, for what was measured.
func timeoutFor(need time.Duration) time.Duration {
	steps := (need + timeoutStep - 1) / timeoutStep
	return min(max(steps*timeoutStep, timeoutMin), timeoutMax)
}

// leaseFor is how long a leader with this T continues without an answer from a majority: until all
// others must have begun to elect another one. To give up earlier helps nobody, and a leader that
// only reads their answers late leads on.
func leaseFor(t time.Duration) time.Duration { return 2 * t }

// ofMajority is the T of a majority of the voters: the longest of them after leaving out a
// minority.
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
func (tm *timing) timeout() time.Duration { return time.Duration(tm.ns.Load()) }

// set changes this node's T.
func (tm *timing) set(run *raftRun, t time.Duration) {
	tm.ns.Store(int64(t))
	run.reloadTimeout()
}

// record records T for the next start of this node, unless its operator has chosen it. A disk that
// takes nothing is tried once.
func (tm *timing) record() {
	t, tried := tm.timeout(), tm.recorded
	tm.recorded = t
	if tm.cfg.ElectionTimeout != 0 || t == tried ||
		tried == 0 && t == max(timeoutOf(tm.store.Identity().Timeout), timeoutMin) {
		return
	}
	if err := tm.store.RecordTimeout(uint32(t / time.Millisecond)); err != nil {
		tm.log.Warn("could not record the election timeout on disk", "error", err)
	}
}

// tune adapts T, if this node leads: first its own, since a leader with a shorter T sends
// heartbeats more often, then that of the others.
func (tm *timing) tune(ctx context.Context, run *raftRun, all, others []voter, leads func() bool) {
	majority := ofMajority(all)
	defer func() { tm.ofMajority.Store(int64(max(tm.timeout(), majority))) }()
	l := run.leadership.Load()
	if l == nil || !leads() {
		return
	}
	now, before := time.Now(), tm.timeout()
	t, reason, needed := chooseTimeout(timeoutSamples{
		t: before, ofMajority: majority, others: len(others),
		fixed: max(tm.cfg.ElectionTimeout, longestFixed(others)),
		led:   now.Sub(l.since), calm: now.Sub(l.calmSince),
		trip: quorumTrip(others, voter.distance), slow: quorumTrip(others, voter.slowness),
		pause: tm.pauses.Now(now),
	})
	if needed || t != before {
		l.calmSince = now
	}
	if t != before {
		tm.log.Info("changing the election timeout of the cluster", "to", t, "before", before,
			"because", reason)
		tm.set(run, t)
	}
	var calls sync.WaitGroup
	for _, v := range others {
		if t := tm.timeout(); v.silent == 0 && v.timeout() != t {
			calls.Go(func() {
				request := nodeRequest{Timeout: uint32(t / time.Millisecond)}
				if _, err := tm.call(ctx, v.ID, v.Address, request); err != nil {
					tm.log.Debug("a node did not confirm the new election timeout", "node",
						v.name(), "timeout", t, "error", err)
				}
			})
		}
	}
	calls.Wait()
}

// timeoutSamples are what the T of a leader depends on.
type timeoutSamples struct {
	t, ofMajority     time.Duration // of this leader, and of a majority; 0 = they announced none
	fixed             time.Duration // the longest that an operator has chosen; 0 = none has
	others            int           // voters beside this node
	led, calm         time.Duration // how long it has led, and a shorter T would have sufficed
	trip, slow, pause time.Duration // to a majority, the same under load, and of this process
}

// chooseTimeout returns the T that a leader wants, and why. T rises at once, and falls to a value
// that has sufficed for a while:
//
//	an operator has chosen T           that one
//	a majority has a longer T, soon
//	after a change of the leader       that one
//	the samples need more              what they need
//	they need T, or nearly             T, and the time of calm begins anew (needed)
//	they have needed less for calm     what they need and a quarter
func chooseTimeout(s timeoutSamples) (t time.Duration, reason string, needed bool) {
	// Load counts half: a repeated round trip is at most a fifth of the lease.
	need := timeoutFactor * max(s.trip+s.pause, s.slow/2)
	reason = fmt.Sprintf("round trips of %v, repeatedly of %v, and pauses of this process of %v",
		s.trip.Round(time.Millisecond),
		s.slow.Round(time.Millisecond), s.pause.Round(time.Millisecond))
	switch {
	case s.fixed != 0: // of several the longest
		return s.fixed, fmt.Sprintf("--election-timeout is %v", s.fixed), false
	case s.led < calm && s.ofMajority > s.t:
		// of an earlier leader: this one has not lowered it yet
		return s.ofMajority, "a majority has it", false
	case s.others == 0: // a single voter needs no answer
	case timeoutFor(need) > s.t:
		return timeoutFor(need), reason, true
	case timeoutFor(need+need/4) >= s.t:
		return s.t, reason, true
	case s.calm >= calm:
		return timeoutFor(need + need/4), reason, false
	}
	return s.t, reason, false
}

// longestFixed is the longest T that the operator of another voter has chosen; 0 = none has.
func longestFixed(others []voter) (fixed time.Duration) {
	for _, v := range others {
		fixed = max(fixed, timeoutOf(v.announced.ElectionTimeoutFixed))
	}
	return fixed
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

// take takes T from the leader.
func (tm *timing) take(run *raftRun, t time.Duration) error {
	if t < electionMin || t > electionMax {
		return fmt.Errorf("%v is not between %v and %v", t, electionMin, electionMax)
	}
	tm.set(run, t)
	return nil
}

// measurePauses measures how long this process is kept from running.
func (tm *timing) measurePauses() {
	tick := time.NewTicker(pauseCheckInterval) // it allocates nothing, and this loop never rests
	defer tick.Stop()
	for last := tm.cfg.Source.Now(); ; {
		select {
		case <-tm.life.Done():
			return
		case <-tick.C:
		}
		now := tm.cfg.Source.Now()
		tm.pauses.Add(time.Now(), now.Since(last).Duration()-pauseCheckInterval)
		last = now
	}
}

// lengthen lengthens this node's T if that is too short for the round trips of a majority of the
// voters, which answered while no leader lasted: with messages slower than raft's timeouts no node
// could lead, and so no leader would measure. They were asked twice, since one round may have met a
// pause.
func (tm *timing) lengthen(run *raftRun, others []voter, rounds ...[]peer.Reply) {
	if tm.cfg.ElectionTimeout != 0 {
		return
	}
	trip := timeoutMax
	for _, replies := range rounds {
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
	pause := tm.pauses.Now(time.Now())
	if t := timeoutFor(timeoutFactor * (trip + pause)); trip > 0 && t > tm.timeout() {
		tm.log.Warn("leaders keep failing although a majority answers slowly; raising the "+
			"election timeout of this node", "timeout", t,
			"before", tm.timeout(), "round_trip", trip, "pause", pause)
		tm.set(run, t)
	}
}

const (
	// ttlTimeouts is a ttl of a session, in T. A failover takes two to four, and a session that
	// renews each third has 0.6 of its ttl left: below this, most failovers end it.
	ttlTimeouts = 4
	// shortTTLsRound is how many sessions are looked at in one read of the state machine.
	shortTTLsRound = 1000
)

// leastTTL is a ttl below which most failovers end a session, with this T.
func leastTTL(t time.Duration) clock.Span {
	return max(ttlTimeouts*clock.FromDuration(t), fsm.TTLMin)
}

// shortTTLs counts the sessions with a shorter ttl than that.
type shortTTLs struct {
	mu      sync.Mutex // held while they are counted
	counted time.Time
	latest  int
}

// count returns how many sessions have a ttl below least. It looks at them only if one can, and at
// most once a second.
func (s *shortTTLs) count(state *state, least clock.Span) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); now.Sub(s.counted) >= time.Second {
		s.latest, s.counted = countBelow(state, least), now
	}
	return s.latest
}

func countBelow(state *state, least clock.Span) (count int) {
	after := session.ID(0)
	for more := least > fsm.TTLMin; more; {
		state.view(func(m *fsm.Machine) {
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
