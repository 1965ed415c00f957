package raftnode

import (
	"errors"
	"reflect"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"zamok/fsm"
	"zamok/raftnode/store"
)

// ProposalTiming is how long one entry took on its leader, stage by stage.
type ProposalTiming struct {
	Commands, Renewals, Bytes int
	// Queue is how long its oldest request waited. Then begin Append, until it was on the leader's disk, and Commit,
	// until a majority had it and raft applied it: the two go on side by side. Apply is the rest, until its answer was
	// there.
	Queue, Append, Commit, Apply time.Duration
}

// proposal is an entry in flight.
type proposal struct {
	batch     batch
	bytes     []byte
	future    raft.ApplyFuture
	queued    time.Time // when its oldest request was
	sent      time.Time
	err       error // set when it is answered
	unblocked int   // set when it is answered: how many callers it unblocks
	// Guarded by proposals.mu.
	index               uint64 // raft's; 0 = not in this node's log yet
	appended, committed time.Time
	seen                time.Time // when the watchdog first saw it committed
}

// propose makes an entry of what waits and proposes it. The clock is read last, after everything in the entry was
// handed in.
func (e *epoch) propose() {
	b := e.node.queue.take()
	entry := fsm.Entry{Version: e.node.state.version.Load()}
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

// apply hands an entry to raft, with its checksum, by which every node can tell it from one that was changed on its way
// (S13 of package store). The future fails when raft ends.
func (in *instance) apply(entry []byte) raft.ApplyFuture {
	return waitAnswered(in.over, in.raft.ApplyLog(raft.Log{Data: entry, Extensions: store.Checksum(entry)}, 0))
}

// awaitApplied waits for raft's answer and passes it on.
func (e *epoch) awaitApplied(p *proposal) {
	p.err = p.future.Error()
	timing := e.node.proposals.complete(p, time.Now())
	switch {
	case p.err == nil:
		applied := p.future.Response().(fsm.Applied)
		p.unblocked = unblocked(len(p.batch.requests), applied)
		p.batch.answer(applied, nil)
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

// proposals are the entries in flight, by the first of their bytes: on the leader, raft hands the very slice that was
// proposed to the log and to the state machine. They are also raft's log, to see when an entry is appended.
type proposals struct {
	raft.LogStore          // of the store
	raft.MonotonicLogStore // the same log, which can't have gaps: raft asks for that

	mu      sync.Mutex // guards what follows
	byBytes map[*byte]*proposal
	refused error // why the log refused what raft appended last; nil = it did not
}

func (ps *proposals) add(p *proposal) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.byBytes[&p.bytes[0]] = p
}

// complete removes a proposal and returns its timing.
func (ps *proposals) complete(p *proposal, now time.Time) ProposalTiming {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	delete(ps.byBytes, &p.bytes[0])
	return ProposalTiming{
		Commands: len(p.batch.requests), Renewals: len(p.batch.renewals), Bytes: len(p.bytes),
		Queue: p.sent.Sub(p.queued), Append: p.appended.Sub(p.sent),
		Commit: p.committed.Sub(p.sent), Apply: now.Sub(p.committed),
	}
}

// refusing returns why the log refused what raft appended last; nil = it did not.
func (ps *proposals) refusing() error {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.refused
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

// stalled is since when the oldest entry waits for this node itself: it is not in its log yet, or it is committed, as far
// as raft has got, and not applied. An entry that waits for other nodes does not count. Zero = there is none.
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

// StoreLog implements raft.LogStore.
func (ps *proposals) StoreLog(l *raft.Log) error { return ps.StoreLogs([]*raft.Log{l}) }

// StoreLogs implements raft.LogStore. It notes which proposals are in the log, and whether that refuses entries.
func (ps *proposals) StoreLogs(logs []*raft.Log) error {
	err := ps.LogStore.StoreLogs(logs)
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.refused = err; err != nil {
		return err
	}
	for _, l := range logs {
		if p := ps.find(l); p != nil {
			p.index = l.Index
		}
	}
	return nil
}

// written notes when proposals are on this node's disk.
func (ps *proposals) written(logs []*raft.Log) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, l := range logs {
		if p := ps.find(l); p != nil {
			p.appended = time.Now()
		}
	}
}

// waitAnswered makes a future of raft fail with raft.ErrRaftShutdown once over is closed. Raft never answers the futures
// that it has not looked at when it ends (hashicorp/raft#498), so a caller would wait for them forever. Futures have
// an exported field against that, ShutdownCh, of types that are not exported; raft sets it for restores only. It is
// read by Error, so it is set before Error is called. Without the field, waiting is as without waitAnswered.
func waitAnswered[F raft.Future](over chan struct{}, future F) F {
	v := reflect.ValueOf(future)
	if v.Kind() != reflect.Pointer { // of those that are answered from the beginning
		return future
	}
	if field := v.Elem().FieldByName("ShutdownCh"); field.IsValid() && field.CanSet() {
		field.Set(reflect.ValueOf(over))
	}
	return future
}
