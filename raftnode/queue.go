package raftnode

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"zamok/clock"
	"zamok/fsm"
	"zamok/session"
)

const (
	// queueMax bounds the commands that wait to be proposed, queueBytesMax their bytes: as many as they have in the
	// log, and requestBytes for each, which is about what a small one takes in memory.
	queueMax      = 1 << 15
	queueBytesMax = 64 << 20
	requestBytes  = 512
	// renewalsMax bounds the renewals of one session that wait: one would do.
	renewalsMax = 8
	// queueWaitMax is how long the oldest may have waited before new requests are refused: then more arrive than are
	// proposed, and a longer queue only adds latency.
	queueWaitMax = 500 * time.Millisecond
	// An entry takes at most this many commands, and stops growing at this many bytes.
	entryCommandsMax = 1024
	entryBytesMax    = 256 << 10
)

// Answer is the result of a command, a renewal or a read barrier.
type Answer struct {
	Result fsm.Result
	// Stamp and Time are the state machine's after the entry.
	Stamp clock.Stamp
	Time  clock.Time
}

// Done receives an answer, or the reason why there is none. It is called exactly once, on the goroutine that has the
// answer, and must not block.
type Done func(Answer, error)

// request is a command that waits to be proposed, or with nil a read barrier.
type request struct {
	command fsm.Command
	since   time.Time
	done    Done
	bytes   int // of the command in an entry; set by the queue
}

// renewal is a session to renew, with all callers that wait for that.
type renewal struct {
	id   session.ID
	done []Done
}

// queue holds what waits to be proposed. It is open while this node leads.
type queue struct {
	wake chan struct{} // capacity 1: a request arrived

	mu       sync.Mutex // guards what follows
	open     bool
	requests []request
	bytes    int // of the requests
	renewals map[session.ID][]Done
	oldest   time.Time // of the renewals; zero = none
}

func newQueue() *queue {
	return &queue{wake: make(chan struct{}, 1), renewals: make(map[session.ID][]Done)}
}

// put adds a request, unless this node does not lead (errNotLeading) or the queue is full.
func (q *queue) put(r request) error {
	if r.command != nil {
		r.bytes = fsm.Size(r.command)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case !q.open:
		return errNotLeading
	case len(q.requests) >= queueMax, q.bytes+requestBytes+r.bytes > queueBytesMax,
		len(q.requests) > 0 && r.since.Sub(q.requests[0].since) > queueWaitMax:
		return ErrOverloaded
	}
	q.requests = append(q.requests, r)
	q.bytes += requestBytes + r.bytes
	q.signal()
	return nil
}

// renew adds a renewal. Renewals have limits of their own: at most renewalsMax for each session. One that is refused
// (ErrOverloaded) has others of its session in front of it, which have the same effect.
func (q *queue) renew(id session.ID, now time.Time, done Done) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.open {
		return errNotLeading
	}
	if len(q.renewals[id]) >= renewalsMax {
		return ErrOverloaded
	}
	if len(q.renewals) == 0 {
		q.oldest = now
	}
	q.renewals[id] = append(q.renewals[id], done)
	return nil // part of the next entry; the epoch proposes one at its tick if there is no other reason
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// batch is the contents of one entry.
type batch struct {
	requests []request
	renewals []renewal
}

// take moves as much into a batch as an entry holds: all renewals, then requests in order.
func (q *queue) take() batch {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := fits(q.requests)
	b := batch{requests: slices.Clone(q.requests[:n])}
	for i := range b.requests {
		q.bytes -= requestBytes + b.requests[i].bytes
	}
	left := copy(q.requests, q.requests[n:])
	clear(q.requests[left:])
	q.requests = q.requests[:left]
	if left > 0 {
		q.signal()
	}
	for id, done := range q.renewals {
		if len(b.renewals) == fsm.RenewalsMax {
			break
		}
		b.renewals = append(b.renewals, renewal{id, done})
		delete(q.renewals, id)
	}
	if len(q.renewals) == 0 {
		q.oldest = time.Time{}
	}
	slices.SortFunc(b.renewals, func(a, b renewal) int { return cmp.Compare(a.id, b.id) })
	return b
}

// fits is how many of the requests one entry takes.
func fits(requests []request) int {
	bytes := 0
	for i := range requests {
		bytes += requests[i].bytes
		if i == entryCommandsMax || i > 0 && bytes > entryBytesMax {
			return i
		}
	}
	return len(requests)
}

// waiting returns how many requests wait, and since when renewals do.
func (q *queue) waiting() (requests int, renewals time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.requests), q.oldest
}

// begin opens the queue.
func (q *queue) begin() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open = true
}

// end closes the queue and returns what waited, none of which was proposed.
func (q *queue) end() batch {
	q.mu.Lock()
	defer q.mu.Unlock()
	b := batch{requests: q.requests}
	for id, done := range q.renewals {
		b.renewals = append(b.renewals, renewal{id, done})
	}
	q.open, q.requests, q.bytes, q.renewals, q.oldest = false, nil, 0, make(map[session.ID][]Done), time.Time{}
	return b
}

func (q *queue) isOpen() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.open
}
