package raftnode

import (
	"errors"
	"math/rand/v2"
	"time"

	"github.com/hashicorp/raft"

	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode/store"
	"zamok/session"
)

const (
	// inFlightMax is how many entries are in flight at once: one is written while the next one gathers requests. More
	// would only make each of them smaller.
	inFlightMax = 2
	// epochTick is how often an epoch reads its clock. A stall is cut off at clock.StepMax, so it must be well below
	// that.
	epochTick = 25 * time.Millisecond
	// renewalsWait is how long renewals wait for an entry of their own. A client renews after a third of its lease, and
	// this is a tenth of the shortest lease.
	renewalsWait = 200 * time.Millisecond
	// checkpointEvery bounds the cluster time that a change of leader loses.
	checkpointEvery = time.Second
	// versionRetry is the pause before LeaderStart is proposed again under another version.
	versionRetry = 10 * time.Millisecond
)

// errNotLeading is the queue's error; Submit turns it into a NotLeaderError.
var errNotLeading = errors.New("this node does not lead")

// supervise runs an epoch each time that raft makes this node leader, one after the other. It calls raft only to
// propose: raft's main loop waits for its notices to be taken.
func (in *instance) supervise() {
	defer close(in.supervised)
	leads, open := in.notice()
	for open {
		if leads {
			leads, open = in.lead()
		} else {
			leads, open = in.notice()
		}
	}
}

// notice waits for raft's next notice; false, false when this instance ends.
func (in *instance) notice() (leads, open bool) {
	select {
	case leads = <-in.notices:
		return in.noticed(leads), true
	case <-in.closing:
		return false, false
	}
}

func (in *instance) noticed(leads bool) bool {
	var since *time.Time
	if leads {
		now := time.Now()
		since = &now
	}
	in.ledSince.Store(since)
	in.epochSince.Store(since)
	return leads
}

// epoch is one leadership of this node, between two notices of raft.
type epoch struct {
	*instance
	clock     *clock.Leader
	completed chan *proposal
	inFlight  int
	batcher   batcher
	sentAt    time.Time // when the latest entry was proposed
	refusedAt time.Time // when the latest failure came back
	cutBefore int64     // what the node's earlier epochs cut off, in ns
}

// lead opens an epoch and runs it until raft's next notice, which it returns when nothing of the epoch is in flight.
func (in *instance) lead() (leads, open bool) {
	e := &epoch{instance: in, completed: make(chan *proposal, inFlightMax), cutBefore: in.node.cut.Load()}
	if !e.start() {
		return in.notice()
	}
	in.epochSince.Store(nil)
	in.node.cfg.Epoch(true)
	in.node.queue.begin()
	leads, open = e.run()
	left := in.node.queue.end()
	in.node.cfg.Epoch(false)
	left.refuse(in.node.notLeader())
	for ; e.inFlight > 0; e.inFlight-- {
		<-e.completed
	}
	return leads, open
}

// apply hands an entry to raft, with its checksum, by which every node can tell it from one that was changed on its way
// (S13 of package store). The future fails when raft ends.
func (in *instance) apply(entry []byte) raft.ApplyFuture {
	return waitAnswered(in.over, in.raft.ApplyLog(raft.Log{Data: entry, Extensions: store.Checksum(entry)}, 0))
}

// start proposes LeaderStart and waits until it is applied: then the state machine has everything of earlier terms, and
// the clock starts from its time.
func (e *epoch) start() bool {
	log := e.node.log
	for {
		command := &fsm.LeaderStart{
			Node: e.node.cfg.ID, Nonce: rand.Uint64(),
			Cluster: fsm.ClusterID(store.NewID()), TokenBase: e.node.cfg.TokenBase,
		}
		entry := fsm.Entry{Version: e.node.state.currentVersion(), Commands: []fsm.Command{command}}
		future := e.apply(entry.Append(nil))
		if err := future.Error(); err != nil {
			log.Info("could not start leading", "error", err)
			return false
		}
		switch applied := future.Response().(fsm.Applied); {
		case applied.Refused == fsm.OtherVersion: // the state machine was behind; it is not any more, or soon
			pause := time.NewTimer(versionRetry)
			select {
			case <-pause.C:
			case <-e.closing:
				pause.Stop()
			}
		case applied.Refused != fsm.OK || applied.Results[0].Code != fsm.OK:
			log.Error("could not start leading: the state machine refused the first entry of the epoch", "refused", applied.Refused, "fault", applied.Fault, "results", applied.Results)
			return false
		default:
			number := applied.Results[0].Index
			e.clock = clock.StartLeader(e.node.cfg.Source, number, applied.Time)
			e.sentAt = time.Now()
			log.Info("leading", "epoch", number, "term", applied.Stamp.Term, "time", applied.Time)
			e.node.state.logHoldOff()
			return true
		}
	}
}

// run proposes until raft's next notice, which it returns.
func (e *epoch) run() (leads, open bool) {
	tick := time.NewTicker(epochTick)
	defer tick.Stop()
	gathered := time.NewTimer(0)
	defer gathered.Stop()
	for {
		select {
		case leads = <-e.notices:
			return e.noticed(leads), true
		case <-e.closing:
			return false, false
		case p := <-e.completed:
			e.inFlight--
			if p.err != nil {
				e.refusedAt = time.Now()
			}
			gathered.Reset(e.batcher.completed(len(p.batch.requests), p.unblocked, p.sent, time.Now()))
		case <-gathered.C:
		case <-e.node.queue.wake:
		case <-tick.C:
		}
		now := e.read() // a step, also when nothing is proposed
		if e.inFlight < inFlightMax && e.mustPropose(now.Now) {
			e.propose()
		}
	}
}

// read reads the clock and publishes what that cut off: after a stall operators look while the epoch continues.
func (e *epoch) read() clock.Reading {
	r := e.clock.Read()
	e.node.cut.Store(e.cutBefore + int64(e.clock.Discarded()))
	return r
}

// mustPropose reports whether there is a reason to propose an entry.
func (e *epoch) mustPropose(now clock.Time) bool {
	requests, renewals := e.node.queue.waiting()
	if e.batcher.ready(requests, e.inFlight, time.Now()) || !renewals.IsZero() && time.Since(renewals) >= renewalsWait {
		return true
	}
	due, pending := e.node.state.nextDue()
	if !pending || e.inFlight > 0 {
		return false // an entry in flight carries the time
	}
	if time.Since(e.refusedAt) < epochTick {
		// Raft refuses everything at once while it transfers the leadership: what is due would be proposed in a hot loop
		// until the transfer has failed.
		return false
	}
	return due <= now || time.Since(e.sentAt) >= checkpointEvery
}

// propose makes an entry of what waits and proposes it. The clock is read last, after everything in the entry was
// handed in.
func (e *epoch) propose() {
	b := e.node.queue.take()
	entry := fsm.Entry{Version: e.node.state.currentVersion()}
	for _, r := range b.renewals {
		entry.Renewals = append(entry.Renewals, r.id)
	}
	p := &proposal{batch: b, queued: time.Now()}
	for _, r := range b.requests {
		if r.command != nil {
			entry.Commands = append(entry.Commands, r.command)
		}
		if r.since.Before(p.queued) {
			p.queued = r.since
		}
	}
	entry.Reading = e.read()
	p.bytes, p.sent = entry.Append(nil), time.Now()
	e.sentAt = p.sent
	e.node.proposals.add(p)
	e.inFlight++
	e.batcher.sent(len(b.requests))
	p.future = e.apply(p.bytes)
	go e.awaitApplied(p)
}

// awaitApplied waits for raft's answer and passes it on.
func (e *epoch) awaitApplied(p *proposal) {
	p.err = p.future.Error()
	timing := e.node.proposals.complete(p, time.Now())
	switch {
	case p.err == nil:
		applied := p.future.Response().(fsm.Applied)
		p.unblocked = unblocked(len(p.batch.requests), applied)
		p.batch.answer(applied)
		e.node.cfg.Timing(timing)
	case errors.Is(p.err, raft.ErrNotLeader), errors.Is(p.err, raft.ErrLeadershipTransferInProgress),
		errors.Is(p.err, store.ErrDiskFull):
		// Raft never took it; or this node's log did not, so no other node was sent it, and raft steps down.
		p.batch.refuse(e.node.notLeader())
	default:
		p.batch.refuse(ErrUnknown)
	}
	e.completed <- p
}

// answer answers each request and renewal of a batch.
func (b *batch) answer(a fsm.Applied) {
	switch a.Refused {
	case fsm.OK:
	case fsm.OtherVersion:
		b.refuse(ErrOtherVersion)
		return
	default:
		b.refuse(errors.New("not done: this node encoded an entry that can't be decoded: " + a.Fault))
		return
	}
	answer := Answer{Stamp: a.Stamp, Time: a.Time}
	next := 0
	for _, r := range b.requests {
		answer.Result = fsm.Result{}
		if r.command != nil {
			answer.Result = a.Results[next]
			next++
		}
		r.done(answer, nil)
	}
	dead := make(map[session.ID]bool, len(a.Unrenewed))
	for _, id := range a.Unrenewed {
		dead[id] = true
	}
	for _, r := range b.renewals {
		answer.Result = fsm.Result{Session: r.id}
		if dead[r.id] {
			answer.Result = fsm.Result{Code: fsm.NoSession}
		}
		for _, done := range r.done {
			done(answer, nil)
		}
	}
}

// refuse answers everything in a batch with an error.
func (b *batch) refuse(err error) {
	for _, r := range b.requests {
		r.done(Answer{}, err)
	}
	for _, r := range b.renewals {
		for _, done := range r.done {
			done(Answer{}, err)
		}
	}
}
