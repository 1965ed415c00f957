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
	// inFlightMax is how many entries are on their way at once: one is written while the next is
	// gathered. More would only make each of them smaller.
	inFlightMax = 2
	// epochTick is how often an epoch looks at its clock. A stall is cut off at clock.StepMax, so
	// it must be well below that.
	epochTick = 25 * time.Millisecond
	// renewalsWait is how long renewals are gathered before an entry leaves for their sake. Nobody waits
	// for one: it is sent when a third of the lease is over, and this is a tenth of the shortest lease.
	renewalsWait = 200 * time.Millisecond
	// checkpointEvery bounds the cluster time that a change of leader loses.
	checkpointEvery = time.Second
	// versionRetry is the pause before LeaderStart is proposed again under other rules.
	versionRetry = 10 * time.Millisecond
)

// errNotLeading is what the queue says; submit turns it into a NotLeaderError.
var errNotLeading = errors.New("no epoch is open here")

// supervise runs an epoch for each time that raft makes this node leader, one after the other. It
// calls raft only to propose: raft's main loop waits for its notices to be taken.
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
	sentAt    time.Time // when the latest entry left
	refusedAt time.Time // when one came back with an error last
	cutBefore int64     // what the node's earlier epochs cut off, in ns
}

// lead opens an epoch, runs it until raft's next notice, and leaves when nothing of it is on its
// way. It returns that notice.
func (in *instance) lead() (leads, open bool) {
	o := &epoch{instance: in, completed: make(chan *proposal, inFlightMax), cutBefore: in.node.cut.Load()}
	if !o.start() {
		return in.notice()
	}
	in.epochSince.Store(nil)
	in.node.cfg.Epoch(true)
	in.node.queue.begin()
	leads, open = o.run()
	left := in.node.queue.end()
	in.node.cfg.Epoch(false)
	left.refuse(in.node.notLeader())
	for o.inFlight > 0 {
		<-o.completed
		o.inFlight--
	}
	return leads, open
}

// start proposes LeaderStart and waits until it is applied: then everything of earlier terms is in
// the machine, and the clock starts from the machine's time.
func (o *epoch) start() bool {
	for {
		command := &fsm.LeaderStart{
			Node: o.node.cfg.ID, Nonce: rand.Uint64(),
			Cluster: fsm.ClusterID(store.NewID()), TokenBase: o.node.cfg.TokenBase,
		}
		entry := fsm.Entry{Version: o.node.state.currentVersion(), Commands: []fsm.Command{command}}
		applied, err := o.propose(entry.Append(nil))
		switch {
		case err != nil:
			o.node.log.Info("could not start leading", "error", err)
			return false
		case applied.Refused == fsm.OtherVersion:
			// The machine had not caught up with the rules. It has now, or soon.
			o.backOff(versionRetry)
		case applied.Refused != fsm.OK || applied.Results[0].Code != fsm.OK:
			o.node.log.Error("could not start leading: the state machine refused the first entry of the epoch", "refused", applied.Refused, "fault", applied.Fault, "results", applied.Results)
			return false
		default:
			number := applied.Results[0].Index
			o.clock = clock.StartLeader(o.node.cfg.Source, number, applied.Time)
			o.sentAt = time.Now()
			o.node.log.Info("leading", "epoch", number, "term", applied.Stamp.Term, "time", applied.Time)
			o.node.state.logHoldOff()
			return true
		}
	}
}

func (o *epoch) backOff(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-o.closing:
	}
}

// encodeProposal is an entry with its checksum, by which every node can tell it from one that was changed on its
// way (S13 of package store).
func encodeProposal(entry []byte) raft.Log {
	return raft.Log{Data: entry, Extensions: store.Checksum(entry)}
}

// propose applies one entry and waits for it. raft answers when leadership is lost.
func (o *epoch) propose(entry []byte) (fsm.Applied, error) {
	future := o.raft.ApplyLog(encodeProposal(entry), 0)
	if err := waitAnswered(o.over, future).Error(); err != nil {
		return fsm.Applied{}, err
	}
	return future.Response().(fsm.Applied), nil
}

// run proposes until raft's next notice, which it returns.
func (o *epoch) run() (leads, open bool) {
	tick := time.NewTicker(epochTick)
	defer tick.Stop()
	gathered := time.NewTimer(0)
	defer gathered.Stop()
	for {
		select {
		case leads = <-o.notices:
			return o.noticed(leads), true
		case <-o.closing:
			return false, false
		case fl := <-o.completed:
			o.inFlight--
			if fl.err != nil {
				o.refusedAt = time.Now()
			}
			gathered.Reset(o.batcher.completed(len(fl.batch.requests), fl.unblocked, fl.sent, time.Now()))
		case <-gathered.C:
		case <-o.node.queue.wake:
		case <-tick.C:
		}
		now := o.read() // a step, also when nothing leaves
		if o.inFlight < inFlightMax && o.mustPropose(now.Now) {
			o.proposeNext()
		}
	}
}

// read reads the clock, and shows at once what that cut off: after a stall people ask while the
// epoch continues.
func (o *epoch) read() clock.Reading {
	r := o.clock.Read()
	o.node.cut.Store(o.cutBefore + int64(o.clock.Discarded()))
	return r
}

// mustPropose reports whether there is a reason for an entry to leave.
func (o *epoch) mustPropose(now clock.Time) bool {
	requests, renewals := o.node.queue.waiting()
	if o.batcher.ready(requests, o.inFlight, time.Now()) || !renewals.IsZero() && time.Since(renewals) >= renewalsWait {
		return true
	}
	due, pending := o.node.state.nextDue()
	if !pending || o.inFlight > 0 {
		return false // what is on its way carries the time
	}
	if time.Since(o.refusedAt) < epochTick {
		// raft takes nothing while it hands the leadership over, and says so at once: what is due
		// would be proposed as fast as that goes, until the handing over has failed.
		return false
	}
	return due <= now || time.Since(o.sentAt) >= checkpointEvery
}

// proposeNext gathers an entry and proposes it. The clock is read last, after everything that the entry
// holds was handed in.
func (o *epoch) proposeNext() {
	b := o.node.queue.take()
	entry := fsm.Entry{Version: o.node.state.currentVersion()}
	for _, r := range b.renewals {
		entry.Renewals = append(entry.Renewals, r.id)
	}
	now := time.Now()
	fl := &proposal{queued: now}
	for _, r := range b.requests {
		if r.command != nil {
			entry.Commands = append(entry.Commands, r.command)
		}
		if r.since.Before(fl.queued) {
			fl.queued = r.since
		}
	}
	entry.Reading = o.read()
	fl.batch, fl.bytes, fl.sent = b, entry.Append(nil), time.Now()
	o.sentAt = fl.sent
	o.node.proposals.add(fl)
	o.inFlight++
	o.batcher.sent(len(b.requests))
	fl.future = o.raft.ApplyLog(encodeProposal(fl.bytes), 0)
	go o.awaitCommit(fl)
}

// awaitCommit waits for raft's answer and hands it on.
func (o *epoch) awaitCommit(fl *proposal) {
	err := waitAnswered(o.over, fl.future).Error()
	fl.err = err
	measure := o.node.proposals.complete(fl, time.Now())
	switch {
	case err == nil:
		applied := fl.future.Response().(fsm.Applied)
		fl.unblocked = unblocked(len(fl.batch.requests), applied)
		fl.batch.answer(applied)
		o.node.cfg.Measure(measure)
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress),
		errors.Is(err, store.ErrDiskFull):
		// Raft never took it; or this node's log did not, nobody else was sent it, and raft gives the
		// leadership up.
		fl.batch.refuse(o.node.notLeader())
	default:
		fl.batch.refuse(ErrUnknown)
	}
	o.completed <- fl
}

// answer tells everybody in the batch what became of it.
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

// refuse gives everybody in the batch the same error.
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
