package raftnode

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Measure is what one entry cost its leader, stage by stage.
type Measure struct {
	Commands, Renewals, Bytes int
	// Queue is how long its oldest request waited; Append, until it was on the leader's disk;
	// Replicate, until a majority had it and raft handed it to the machine; Apply, until its
	// answer was there.
	Queue, Append, Replicate, Apply time.Duration
}

// proposal is an entry on its way.
type proposal struct {
	batch     batch
	bytes     []byte
	future    raft.ApplyFuture
	queued    time.Time
	sent      time.Time
	err       error // set when it landed
	unblocked int   // set when it landed: how many it lets continue
	// Guarded by in-in-flight proposal proposals.mu.
	index               uint64 // raft's; 0 = not in this node's log yet
	appended, committed time.Time
	seen                time.Time // when the watchdog first saw it committed
}

// proposals knows the entries on their way by the first of their bytes: on the leader, raft hands the
// very slice that was proposed to the log and to the machine.
type proposals struct {
	mu      sync.Mutex
	byBytes map[*byte]*proposal
	refused error // why the log did not take what raft appended last; nil = it did
}

func newProposals() *proposals { return &proposals{byBytes: make(map[*byte]*proposal)} }

func (f *proposals) add(fl *proposal) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.byBytes[&fl.bytes[0]] = fl
}

// complete forgets a in-flight proposal and returns what it measured.
func (f *proposals) complete(fl *proposal, now time.Time) Measure {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.byBytes, &fl.bytes[0])
	return Measure{
		Commands: len(fl.batch.requests), Renewals: len(fl.batch.renewals), Bytes: len(fl.bytes),
		Queue: fl.sent.Sub(fl.queued), Append: fl.appended.Sub(fl.sent),
		Replicate: fl.committed.Sub(fl.appended), Apply: now.Sub(fl.committed),
	}
}

// refusing says why the log did not take what raft appended last; nil = it did.
func (f *proposals) refusing() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.refused
}

// find returns the in-flight proposal of an entry, or nil; the caller holds the lock.
func (f *proposals) find(l *raft.Log) *proposal {
	if len(l.Data) == 0 || len(f.byBytes) == 0 {
		return nil
	}
	return f.byBytes[&l.Data[0]]
}

func (f *proposals) committed(l *raft.Log) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl := f.find(l); fl != nil {
		fl.committed = time.Now()
	}
}

// timedLog tells the in-in-flight proposal proposals when they were on disk, and whether the log takes what is appended.
type timedLog struct {
	raft.LogStore
	proposals *proposals
}

func (t timedLog) StoreLog(l *raft.Log) error { return t.StoreLogs([]*raft.Log{l}) }

func (t timedLog) StoreLogs(logs []*raft.Log) error {
	err := t.LogStore.StoreLogs(logs)
	t.proposals.mu.Lock()
	defer t.proposals.mu.Unlock()
	if t.proposals.refused = err; err != nil {
		return err
	}
	for _, l := range logs {
		if fl := t.proposals.find(l); fl != nil {
			fl.index, fl.appended = l.Index, time.Now()
		}
	}
	return nil
}

// stalled is since when an entry has lain with this node itself: not in its log yet, or committed, as
// far as raft has got, and not answered by the machine. One that waits for other nodes does not lie
// here. Zero = there is none.
func (f *proposals) stalled(committed uint64, now time.Time) (oldest time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fl := range f.byBytes {
		since := fl.sent
		if fl.index != 0 {
			if fl.index > committed {
				continue
			}
			if fl.seen.IsZero() {
				fl.seen = now
			}
			since = fl.seen
		}
		if oldest.IsZero() || since.Before(oldest) {
			oldest = since
		}
	}
	return oldest
}

// IsMonotonic hands on what raft asks of a log that can't have gaps.
func (t timedLog) IsMonotonic() bool {
	log, ok := t.LogStore.(raft.MonotonicLogStore)
	return ok && log.IsMonotonic()
}
