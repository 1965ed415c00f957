package store

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Op says what a write was for.
type Op uint8

const (
	OpAppend  Op = iota + 1 // entries into the log
	OpDelete                // at most DeleteChunk entries out of the log; with WAL any number
	OpVote                  // a vote: its term and its candidate
	OpSetting               // any other value of the table; for raft, its current term
)

func (op Op) String() string {
	switch op {
	case OpAppend:
		return "append"
	case OpDelete:
		return "delete"
	case OpVote:
		return "vote"
	case OpSetting:
		return "setting"
	}
	return fmt.Sprintf("op %d", uint8(op))
}

// Write is one write of log or vote that is over, its fsync included.
type Write struct {
	Op      Op
	Entries int           // entries of the log, or values of the table
	Bytes   int           // of what raft handed over; 0 for a deletion
	Waited  time.Duration // for the writer before it, in the same file
	Took    time.Duration // writing and fsync
	Err     error         // nil; or wraps ErrBroken, or ErrDiskFull for a refusal
}

// InProgress is a write that has not returned.
type InProgress struct {
	Op    Op
	Since time.Time // when it was asked for
}

// A serialWriter writes one file: one writer at a time, in the order of their coming.
type serialWriter struct {
	file   string // for messages
	mu     fifoMutex
	record *record
}

// A turn is a mutex that serves in order of coming, so that a long deletion
// can't overtake a waiting append again and again, and that a goroutine of a
// testing/synctest bubble can wait for (for a sync.Mutex, time would stand).
type fifoMutex chan struct{}

func newFIFOMutex() fifoMutex { return make(fifoMutex, 1) }
func (t fifoMutex) Lock()     { t <- struct{}{} }
func (t fifoMutex) Unlock()   { <-t }

// A record is what the writers of one store share: which writes are in progress,
// and whether writing is over.
type record struct {
	fatal   func(error)
	observe func(Write)

	mu      sync.Mutex
	running []*InProgress // oldest first
	broken  error         // the first failure; wraps ErrBroken, ErrDamaged or ErrContradicted
	closed  bool
}

// write does one write under the rules S3 and S4.
func (p *serialWriter) write(w Write, do func() error) error {
	err := p.attempt(w, do)
	if err != nil && !errors.Is(err, ErrClosed) {
		// Here nothing is held any more, so Fatal may end this goroutine.
		p.record.fatal(err)
	}
	return err
}

// read does one read. What is not there is an answer; anything else that keeps a
// record from being read is damage, and ends the process as a failed write does
// (S12).
func (p *serialWriter) read(do func() error) error {
	err := recovered(do)
	if err == nil || errors.Is(err, raft.ErrLogNotFound) || errors.Is(err, errNotFound) {
		return err
	}
	if err := p.record.ended(); err != nil {
		return err
	}
	err = p.record.end(Damaged(p.file, err.Error()))
	p.record.fatal(err)
	return err
}

func (p *serialWriter) attempt(w Write, do func() error) (err error) {
	asked := p.record.begin(w.Op)
	defer p.record.done(asked)

	p.mu.Lock()
	defer p.mu.Unlock()

	// Looked at only now: the writer before this one may have failed.
	if err := p.record.ended(); err != nil {
		return err
	}
	begun := time.Now()
	w.Waited = begun.Sub(asked.Since)
	switch cause := recovered(do); {
	case errors.Is(cause, errRecord):
		err = p.record.end(Damaged(p.file, cause.Error()))
	case cause != nil:
		err = p.record.fail(w, cause)
	}
	w.Took, w.Err = time.Since(begun), err
	p.record.observe(w)
	return err
}

func (r *record) begin(op Op) *InProgress {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := &InProgress{Op: op, Since: time.Now()}
	r.running = append(r.running, w)
	return w
}

func (r *record) done(w *InProgress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.running {
		if r.running[i] == w {
			r.running = append(r.running[:i], r.running[i+1:]...)
			return
		}
	}
}

// oldest returns the write that has been in progress for longest.
func (r *record) oldest() (w InProgress, writing bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.running) == 0 {
		return InProgress{}, false
	}
	return *r.running[0], true
}

// ended says why no write may begin; nil while one may.
func (r *record) ended() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.broken != nil:
		return r.broken
	case r.closed:
		return fmt.Errorf("store: %w; nothing was written; end raft before closing its store", ErrClosed)
	}
	return nil
}

// fail ends all writing because a write failed.
func (r *record) fail(w Write, cause error) error {
	return r.end(fmt.Errorf("store: %w (%v, %d entries or values): %w; whether it took effect is unknown, and nothing is written after it; "+
		"the process must end and start again; if this happens again, replace the disk and %s",
		ErrBroken, w.Op, w.Entries, cause, replaceNode))
}

// end ends all writing because of cause. The first cause stays, and is returned.
func (r *record) end(cause error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.broken == nil {
		r.broken = cause
	}
	return r.broken
}

func (r *record) isBroken() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.broken != nil
}

// close ends all writing because nobody wants any more of it. It reports whether
// it was the first to do so.
func (r *record) close() (first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first, r.closed = !r.closed, true
	return first
}
