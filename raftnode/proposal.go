package raftnode

import (
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode/store"
)

// ProposalTiming is how long one entry took on its leader, stage by stage.
type ProposalTiming struct {
	Commands, Renewals, Bytes int
	// Queue is how long its oldest request waited. Append and Commit both begin when the entry is
	// proposed, and overlap: Append ends when the leader's disk has it, Commit when a majority has
	// it and the state machine begins with it. Apply ends when it is applied, with those of the
	// same batch, just before its requests are answered.
	Queue, Append, Commit, Apply time.Duration
}

// proposal is an entry in flight.
type proposal struct {
	epoch  *epoch
	batch  batch
	bytes  []byte
	queued time.Time // when its oldest request was
	sent   time.Time
	future raft.ApplyFuture
	// Guarded by proposals.mu.
	line                int    // its bytes and those of the entries in flight when it was sent
	awaited             bool   // a goroutine waits for the future
	index               uint64 // raft's; 0 = not in this node's log yet
	appended, committed time.Time
	seen                time.Time // when the watchdog first saw it committed
}

// propose makes an entry of what waits and proposes it. The clock is read last, after everything in
// the entry was handed in.
func (e *epoch) propose() {
	b, late := e.proposer.queue.take()
	entry := fsm.Entry{Version: e.proposer.state.version.Load()}
	for _, r := range b.renewals {
		entry.Renewals = append(entry.Renewals, r.id)
	}
	p := &proposal{epoch: e, batch: b, queued: time.Now()}
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
	e.inFlight.Add(1)
	e.proposer.proposals.add(p)
	var err error
	if p.future, err = e.apply(p.bytes); err != nil {
		p.finish(fsm.Applied{}, err)
	}
	// their callers may read the state machine, which an entry that is applied can keep busy
	if len(late) > 0 {
		e.inFlight.Go(func() {
			for _, r := range late {
				r.done(Answer{}, ErrOverloaded)
			}
		})
	}
}

// apply hands an entry to raft, with its checksum. By that every node can tell it from one that was
// changed on its way (S13 of package store). After an error raft has not got the entry: this node
// could not decode it (N11). The checksum is taken first, so that it is of the bytes that were
// decoded.
func (e *epoch) apply(entry []byte) (raft.ApplyFuture, error) {
	l := raft.Log{Data: entry, Extensions: store.Checksum(entry)}
	if err := e.checker.Check(entry); err != nil {
		e.proposer.log.Error("could not decode an entry of this node's own; it was not proposed: "+
			"report this as a bug", "error", err)
		return nil, fmt.Errorf("%w: %w", ErrUndecodable, err)
	}
	return e.raft.ApplyLog(l, 0), nil
}

// wait waits until raft has completed an entry, or has ended.
func (run *raftRun) wait(future raft.ApplyFuture) (applied fsm.Applied, err error) {
	if err = failWhenOver(run.over, future).Error(); err == nil {
		applied = future.Response().(fsm.Applied)
	}
	return applied, err
}

// finish answers a proposal, unless it was answered already. Usually the goroutine that applied the
// entry calls it; if the entry has been in flight for a tick, so does a goroutine that waits for
// raft's future (awaitFailures).
func (p *proposal) finish(applied fsm.Applied, err error) {
	by := p.epoch.proposer
	timing, first := by.proposals.complete(p, time.Now())
	if !first {
		return
	}
	defer p.epoch.inFlight.Done()
	requests, unblocked := len(p.batch.requests), 0
	switch {
	case err == nil:
		unblocked = countUnblocked(requests, applied)
		p.batch.answer(applied, nil)
		by.cfg.Timing(timing)
	case errors.Is(err, ErrUndecodable):
		p.batch.fail(err)
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress),
		errors.Is(err, store.ErrDiskFull):
		// Raft never took it. Or this node's log did not: then no other node was sent it, and raft
		// steps down.
		p.batch.fail(by.notLeader())
	default:
		p.batch.fail(ErrUnknown)
	}
	by.queue.completed(requests, unblocked, p.sent)
	// One entry expires a limited number of sessions and tickets. If more are due, they go into the
	// next entry at once.
	if err == nil && clock.Time(by.state.due.Load()) <= applied.Time {
		offer(by.queue.wake, struct{}{})
	}
}

// proposals are the entries in flight, by the first of their bytes: on the leader, raft hands the
// very slice that was proposed to the log and to the state machine. They are also raft's log, to
// see when an entry is appended.
type proposals struct {
	raft.LogStore          // of the store
	raft.MonotonicLogStore // the same log, which can't have gaps: raft checks for that

	mu        sync.Mutex // guards what follows
	byBytes   map[*byte]*proposal
	appendErr error // why the latest append failed; nil = it did not

	checker fsm.Checker // of the goroutine that appends
	fatal   func(error) // ends the process
}

func (ps *proposals) add(p *proposal) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.byBytes[&p.bytes[0]] = p
	for _, other := range ps.byBytes {
		p.line += len(other.bytes)
	}
}

// complete removes a proposal and returns its timing; first is false if it was removed before.
func (ps *proposals) complete(p *proposal, now time.Time) (timing ProposalTiming, first bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.byBytes[&p.bytes[0]] != p {
		return timing, false
	}
	delete(ps.byBytes, &p.bytes[0])
	return ProposalTiming{
		Commands: len(p.batch.requests), Renewals: len(p.batch.renewals), Bytes: len(p.bytes),
		Queue: p.sent.Sub(p.queued), Append: p.appended.Sub(p.sent),
		Commit: p.committed.Sub(p.sent), Apply: now.Sub(p.committed),
	}, true
}

// awaitFailures starts a goroutine for each proposal that has been in flight for at least that
// long. The goroutine waits for raft's future, because raft reports failures only there.
func (ps *proposals) awaitFailures(after time.Duration) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, p := range ps.byBytes {
		if !p.awaited && time.Since(p.sent) >= after {
			p.awaited = true
			go func() { p.finish(p.epoch.wait(p.future)) }()
		}
	}
}

// appendFailure returns why the latest append failed; nil = it did not.
func (ps *proposals) appendFailure() error {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.appendErr
}

// find returns the proposal of an entry, or nil; the caller holds the lock.
func (ps *proposals) find(l *raft.Log) *proposal {
	if len(l.Data) == 0 {
		return nil
	}
	return ps.byBytes[&l.Data[0]]
}

func (ps *proposals) committed(l *raft.Log) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p := ps.find(l); p != nil {
		p.committed = time.Now()
	}
}

// applied answers the proposal of an entry, if there is one.
func (ps *proposals) applied(l *raft.Log, a fsm.Applied) {
	ps.mu.Lock()
	p := ps.find(l)
	ps.mu.Unlock()
	if p != nil {
		p.finish(a, nil)
	}
}

// stalled is since when the oldest entry has been waiting for this node itself: it is not in this
// node's log yet, or it is committed and not applied. An entry that waits for other nodes does not
// count. Zero = there is none.
func (ps *proposals) stalled(committed uint64, now time.Time) (oldest time.Time) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, p := range ps.byBytes {
		since := p.sent
		if p.index != 0 {
			if p.index > committed {
				continue
			}
			if p.seen.IsZero() {
				p.seen = now
			}
			since = p.seen
		}
		if oldest.IsZero() || since.Before(oldest) {
			oldest = since
		}
	}
	return oldest
}

// uncommitted is since when the oldest entry has been waiting to be committed, and the bytes that
// were in flight when the latest was sent: lines carry what is committed meanwhile, too. Zero =
// none waits.
func (ps *proposals) uncommitted(committed uint64) (oldest time.Time, bytes int) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, p := range ps.byBytes {
		if p.index != 0 && p.index <= committed {
			continue
		}
		bytes = max(bytes, p.line)
		if oldest.IsZero() || p.sent.Before(oldest) {
			oldest = p.sent
		}
	}
	return oldest, bytes
}

// StoreLog implements raft.LogStore.
func (ps *proposals) StoreLog(l *raft.Log) error { return ps.StoreLogs([]*raft.Log{l}) }

// StoreLogs implements raft.LogStore. It records which proposals are in the log, and whether the
// append failed. The process ends before an entry that it could not apply is in the log, and so
// before this node acknowledges it (N11).
func (ps *proposals) StoreLogs(logs []*raft.Log) error {
	for _, l := range logs {
		if err := ps.check(l); err != nil {
			ps.fatal(
				fmt.Errorf("raftnode: entry %d of term %d was rejected, and is not in the log of "+
					"this node: %w", l.Index, l.Term, err))
		}
	}
	err := ps.LogStore.StoreLogs(logs)
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.appendErr = err; err != nil {
		return err
	}
	for _, l := range logs {
		if p := ps.find(l); p != nil {
			p.index = l.Index
		}
	}
	return nil
}

// check returns why this node can't apply an entry that fits its checksum; the log refuses one that
// does not. An entry of this node's own was checked when it was proposed.
func (ps *proposals) check(l *raft.Log) error {
	ps.mu.Lock()
	own := ps.find(l) != nil
	ps.mu.Unlock()
	if own || l.Type != raft.LogCommand {
		return nil
	}
	if err := ps.checker.Check(l.Data); err != nil && store.Verify(l) == nil {
		return err
	}
	return nil
}

// written records when proposals are on this node's disk.
func (ps *proposals) written(logs []*raft.Log) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, l := range logs {
		if p := ps.find(l); p != nil {
			p.appended = time.Now()
		}
	}
}

// failWhenOver makes a future of raft fail with raft.ErrRaftShutdown once over is closed. Raft
// forgets the futures that it has still to look at when it ends (hashicorp/raft#498), so a caller
// would wait for them forever. Against that the futures have a field ShutdownCh, which raft sets
// for restores only. The field is exported and its type is not, so it is set by reflection, before
// Error reads it. A future without the field is returned as it is.
func failWhenOver[F raft.Future](over chan struct{}, future F) F {
	v := reflect.ValueOf(future)
	if v.Kind() != reflect.Pointer { // one that was complete from the beginning
		return future
	}
	if field := v.Elem().FieldByName("ShutdownCh"); field.IsValid() && field.CanSet() {
		field.Set(reflect.ValueOf(over))
	}
	return future
}
