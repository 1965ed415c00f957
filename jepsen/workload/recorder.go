package workload

import (
	"sync"
	"sync/atomic"
	"time"

	"zamok/jepsen/check"
)

// Recorder records the calls of clients. Of two records of one thing the later counts.
type Recorder struct {
	HistoryTime func() time.Duration // the present, as histories have it
	Put         func(check.Record)

	calls atomic.Uint64 // numbers them
}

// Call makes a call and records it; do adds the answer to the record. A call that changes something
// is recorded before it is made: if its process is killed, it may have been done all the same.
func (r *Recorder) Call(op check.Op, do func(*check.Op) error) error {
	op.ID, op.Call, op.Outcome = r.calls.Add(1), r.HistoryTime(), check.Unknown
	if !op.Reads() {
		r.Put(check.Record{Op: &op})
	}
	err := do(&op)
	op.Return, op.Outcome = r.HistoryTime(), check.OutcomeOf(err)
	if err != nil {
		op.Error = err.Error()
		// a lock may be lost after it was downgraded
		if op.Reads() || op.Kind == check.OpDowngrade {
			op.Outcome = check.Unknown
		}
	}
	r.Put(check.Record{Op: &op})
	return err
}

// Hold is a hold that is recorded. Two goroutines may report its end; the first one counts.
type Hold struct {
	check.Hold
	record *Recorder
	mu     sync.Mutex // guards the end, and the downgrade
}

// StartHold records that a client considers itself the holder from now on.
func (r *Recorder) StartHold(h check.Hold) *Hold {
	h.From = r.HistoryTime()
	r.Put(check.Record{Hold: &h})
	return &Hold{Hold: h, record: r}
}

// Finish records, once, how the hold ended.
func (h *Hold) Finish(end check.HoldEnd, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.To == 0 {
		h.To, h.End, h.Reason = h.record.HistoryTime(), end, reason
		h.record.Put(check.Record{Hold: &h.Hold})
	}
}

// downgrade records that the hold counts as shared from now on.
func (h *Hold) downgrade() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Downgraded = h.record.HistoryTime()
	h.record.Put(check.Record{Hold: &h.Hold})
}

// Resource is what the locks guard: it accepts no write with a token below the greatest exclusive
// one that it saw.
type Resource struct {
	*Recorder

	mu      sync.Mutex // guards highest
	highest map[string]uint64
}

// NewResource makes a resource for all locks.
func NewResource(r *Recorder) *Resource {
	return &Resource{Recorder: r, highest: map[string]uint64{}}
}

// Write decides whether a write is accepted, and records it. Its form is that of net/rpc; the
// answer is empty.
func (r *Resource) Write(w check.Write, _ *int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	w.Accepted, w.At = w.Token >= r.highest[w.Resource], r.HistoryTime()
	if w.Accepted && !w.Shared {
		r.highest[w.Resource] = w.Token
	}
	r.Put(check.Record{Write: &w})
	return nil
}
