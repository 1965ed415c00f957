package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Op is what a write was for.
type Op string

const (
	OpAppend      Op = "append"       // entries into the log
	OpDelete      Op = "delete"       // entries out of the log
	OpMarkDurable Op = "mark durable" // the record that what was written to the log is durable
	OpVote        Op = "vote"         // a vote: its term and its candidate
	OpSetting     Op = "setting"      // any other value of the table; for raft, its current term
)

// InProgress is a write that has not returned.
type InProgress struct {
	Op    Op
	Since time.Time // when it was requested
}

// A serialWriter writes one file: one writer at a time, first come, first served.
type serialWriter struct {
	file   string // for messages
	mu     fifoMutex
	record *record
}

// A fifoMutex is a mutex that serves in order of coming, so that a long deletion
// can't overtake a waiting append again and again, and that a goroutine of a
// testing/synctest bubble can wait for (for a sync.Mutex, time would stand).
type fifoMutex chan struct{}

func newFIFOMutex() fifoMutex { return make(fifoMutex, 1) }
func (t fifoMutex) Lock()     { t <- struct{}{} }
func (t fifoMutex) Unlock()   { <-t }

// A record is what the writers of one store share: which writes are in progress,
// and whether writing has ended.
type record struct {
	fatal   func(error)
	observe func(took time.Duration)

	// The cause of ctx is why no write may begin: the first failure, which wraps ErrBroken,
	// ErrDamaged or the like, or ErrClosed.
	ctx  context.Context
	stop context.CancelCauseFunc

	mu      sync.Mutex
	running []InProgress // oldest first
}

// write does one write, of so many entries or values, under the rules S3 and S4.
func (p *serialWriter) write(op Op, count int, do func() error) error {
	err := p.attempt(op, count, do)
	if err != nil && !errors.Is(err, ErrClosed) {
		p.record.fatal(err) // nothing is locked any more, so it may end this goroutine
	}
	return err
}

// damaged ends the process, as a failed write does, because a record of the file can't be read
// (S12).
func (p *serialWriter) damaged(cause error) error {
	if err := p.record.ended(); err != nil {
		return err
	}
	return p.record.abort(Damaged(p.file, cause.Error()))
}

func (p *serialWriter) attempt(op Op, count int, do func() error) error {
	defer p.record.done(p.record.begin(op))
	p.mu.Lock()
	defer p.mu.Unlock()

	if err := p.record.ended(); err != nil { // perhaps since the write before this one
		return err
	}
	begun := time.Now()
	switch cause := recovered(do); {
	case cause == nil:
		if op != OpMarkDurable { // which is no write of entries, and small
			p.record.observe(time.Since(begun))
		}
		return nil
	case errors.Is(cause, errRecord):
		return p.record.end(Damaged(p.file, cause.Error()))
	default:
		return p.record.end(fmt.Errorf(
			"store: %w (%v, %d entries or values): %w; whether it took effect is unknown, and "+
				"nothing is written after it; the process must end and start again; if this "+
				"happens again, replace the disk and %s",
			ErrBroken, op, count, cause, replaceNode))
	}
}

// begin adds a write to those in progress until it is done. Neither allocates: each proposal pays
// for it twice.
func (r *record) begin(op Op) InProgress {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := InProgress{Op: op, Since: time.Now()}
	r.running = append(r.running, w)
	return w
}

func (r *record) done(w InProgress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.Index(r.running, w) // of two that are equal, either
	r.running = slices.Delete(r.running, i, i+1)
}

// oldest returns the write that has been in progress for longest.
func (r *record) oldest() (w InProgress, writing bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.running) == 0 {
		return InProgress{}, false
	}
	return r.running[0], true
}

// ended returns why no write may begin; nil while one may.
func (r *record) ended() error { return context.Cause(r.ctx) }

// end ends all writing because of cause. The first cause stays, and is returned.
func (r *record) end(cause error) error {
	r.stop(cause)
	return r.ended()
}

// abort ends the process because of cause. It returns the first cause.
func (r *record) abort(cause error) error {
	err := r.end(cause)
	r.fatal(err)
	return err
}
