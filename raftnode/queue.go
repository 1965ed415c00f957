package raftnode

import (
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
	// queueWaitMax is how long the oldest may have waited before newcomers are refused: then more
	// comes in than goes out, and waiting longer helps nobody.
	queueWaitMax = 500 * time.Millisecond
	// An entry takes at most this many commands, and stops growing at this many bytes.
	entryCommandsMax = 1024
	entryBytesMax    = 256 << 10
)

// Answer is what became of a command, a renewal or a fence.
type Answer struct {
	Result fsm.Result
	// Stamp and Time are the machine's after the entry.
	Stamp clock.Stamp
	Time  clock.Time
}

// Done receives an answer, or the error that says why there is none. It is called exactly once, on
// whatever goroutine has the answer, and must not block.
type Done func(Answer, error)

// request is a command, or with nil a fence, that waits to be proposed.
type request struct {
	command fsm.Command
	since   time.Time
	done    Done
	bytes   int // of the command in an entry; set by the queue
}

// renewal is a session that renewed, and all who want to know.
type renewal struct {
	id   session.ID
	done []Done
}

// queue is what waits for the epoch to propose it. It is open while there is one.
type queue struct {
	wake chan struct{} // capacity 1: something came

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

// put adds a request, unless there is no epoch (errNotLeading) or no room.
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

// renew adds a renewal. Renewals have room of their own: there are renewalsMax a session at most, and one that is
// refused (ErrOverloaded) had others of its session before it, which do the same.
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
	return nil // rides on what leaves next; the epoch's tick sees to it that something does
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// batch is what goes into one entry.
type batch struct {
	requests []request
	renewals []renewal
}

// take empties the queue into a batch, as far as one entry goes: all renewals, then requests in
// order.
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
	slices.SortFunc(b.renewals, func(a, b renewal) int {
		if a.id < b.id {
			return -1
		}
		return 1
	})
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

// waiting tells how many requests wait, and since when renewals do.
func (q *queue) waiting() (requests int, renewals time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.requests), q.oldest
}

// begin opens the queue for an epoch.
func (q *queue) begin() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open = true
}

// end closes the queue and returns what waited: nothing of it was proposed.
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
