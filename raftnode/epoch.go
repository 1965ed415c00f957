package raftnode

import (
	"math/rand/v2"
	"sync"
	"time"

	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode/store"
)

const (
	// inFlightMax is how many entries are in flight at once: one is written while the next one
	// gathers requests. More would only make each of them smaller.
	inFlightMax = 2
	// epochTick is how often an epoch reads its clock. A stall is cut off at clock.StepMax, so it
	// must be well below that. It is also how long an entry is in flight before a goroutine waits
	// for its failure (awaitFailures).
	epochTick = 25 * time.Millisecond
	// renewalsWait is how long renewals wait for an entry of their own. A client renews after a
	// third of its lease, and this is a tenth of the shortest lease.
	renewalsWait = 200 * time.Millisecond
	// checkpointEvery bounds the cluster time that a change of leader loses.
	checkpointEvery = time.Second
	// versionRetry is how long a leader waits before it proposes LeaderStart again, under another
	// version.
	versionRetry = 10 * time.Millisecond
)

// supervise runs an epoch each time that raft makes this node leader, one after the other. It waits
// for raft only to propose: raft's main loop waits until NotifyCh is read.
func (run *raftRun) supervise() {
	defer close(run.supervised)
	for run.lead() {
	}
}

// awaitLeadership waits until raft changes the leadership of this node; false when this run of raft
// ends instead.
func (run *raftRun) awaitLeadership() (running bool) {
	select {
	case leads := <-run.notifyCh:
		return run.setLeadership(leads)
	case <-run.life.Done():
		run.setLeadership(false) // the watchdog looks at a run that has ended until the next one
		return false
	}
}

// setLeadership records whether raft has made this node leader.
func (run *raftRun) setLeadership(leads bool) (running bool) {
	var begun *leadership
	if now := time.Now(); leads {
		begun = &leadership{since: now, calmSince: now}
	}
	run.leadership.Store(begun)
	run.reloadTimeout()
	return true
}

// epoch is one leadership of this node: it lasts until raft ends that.
type epoch struct {
	*raftRun
	clock     *clock.Leader
	inFlight  sync.WaitGroup // entries, and late acquisitions, that are not answered yet
	sentAt    time.Time      // when the latest entry was proposed
	cutBefore int64          // what the node's earlier epochs cut off, in ns
	checker   fsm.Checker    // of entries before they are proposed
}

// lead opens an epoch, if raft made this node leader, and runs it until raft ends it; false when
// this run of raft ends instead. It returns when nothing of the epoch is in flight.
func (run *raftRun) lead() (running bool) {
	e := &epoch{raftRun: run, cutBefore: run.proposer.cut.Load()}
	if run.ledSince().IsZero() || !e.start() {
		return run.awaitLeadership()
	}
	run.proposer.cfg.Epoch(true)
	run.proposer.queue.open.Store(true)
	running = e.run()
	left := run.proposer.queue.end()
	run.proposer.cfg.Epoch(false)
	left.fail(run.proposer.notLeader())
	run.proposer.proposals.awaitFailures(0)
	e.inFlight.Wait()
	return running
}

// start proposes LeaderStart and waits until it is applied: then the state machine has everything
// of earlier terms, and the clock starts from its time.
func (e *epoch) start() bool {
	log := e.proposer.log
	for {
		command := &fsm.LeaderStart{
			Node: e.proposer.cfg.ID, Nonce: rand.Uint64(),
			Cluster: fsm.ClusterID(store.NewID()), TokenBase: e.proposer.cfg.TokenBase,
		}
		entry := fsm.Entry{Version: e.proposer.state.version.Load(),
			Commands: []fsm.Command{command}}
		var applied fsm.Applied
		future, err := e.apply(entry.Append(nil))
		if err == nil {
			applied, err = e.wait(future)
		}
		switch {
		case err != nil:
			log.Info("could not start leading", "error", err)
			return false
		case applied.Refused == fsm.OtherVersion:
			// the state machine was behind; it is not any more, or soon
			_ = sleep(e.life, versionRetry)
		case applied.Refused != fsm.OK || applied.Results[0].Code != fsm.OK:
			log.Error("could not start leading: the state machine refused the first entry of "+
				"the epoch", "refused", applied.Refused, "results", applied.Results)
			return false
		default:
			number := applied.Results[0].Index
			e.clock = clock.StartLeader(e.proposer.cfg.Source, number, applied.Time)
			e.sentAt = time.Now()
			log.Info("leading", "epoch", number, "term", applied.Stamp.Term, "time", applied.Time)
			e.proposer.state.logHoldOff()
			return true
		}
	}
}

// run proposes until raft ends the leadership; false when this run of raft ends instead.
func (e *epoch) run() (running bool) {
	tick := time.NewTicker(epochTick)
	defer tick.Stop()
	for {
		select {
		case leads := <-e.notifyCh:
			return e.setLeadership(leads)
		case <-e.life.Done():
			e.setLeadership(false)
			return false
		case <-e.proposer.queue.gathered.C:
		case <-e.proposer.queue.wake:
		case <-tick.C:
		}
		// the clock is read also if nothing is proposed, or the time since would look like a stall
		for e.mustPropose(e.read().Now) {
			e.propose()
		}
		e.proposer.proposals.awaitFailures(epochTick)
	}
}

// read reads the clock and publishes what that cut off: after a stall operators look while the
// epoch continues.
func (e *epoch) read() clock.Reading {
	r := e.clock.Read()
	e.proposer.cut.Store(e.cutBefore + int64(e.clock.Discarded()))
	return r
}

// mustPropose reports whether there is a reason to propose an entry.
func (e *epoch) mustPropose(now clock.Time) bool {
	ready, idle := e.proposer.queue.look()
	due := e.proposer.state.due.Load()
	return ready || idle && due != never &&
		(clock.Time(due) <= now || time.Since(e.sentAt) >= checkpointEvery)
}
