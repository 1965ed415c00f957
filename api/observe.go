package api

import (
	"sync"
	"time"

	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/raftnode/store"
)

// Observer is told what a node does, to count it. Every field may be nil. Functions are called on the
// goroutine that does the work, some under the machine's lock: they must be quick and must not call
// the node. What happens to locks and sessions is told by the leader only, so that a sum over all
// nodes counts it once.
type Observer struct {
	// Measure is told what each entry cost its leader, Wrote of each write to this node's disk.
	Measure   func(raftnode.Measure)
	DiskWrite func(store.Write)
	// Epoch is told that this node leads, and that it does not any more.
	Epoch func(open bool)

	// Granted is told of each lock of a grant, with its mode; Held, at the grant's end, how long it was
	// held in cluster time, if this node led when it began.
	Granted func(fsm.Mode)
	Held    func(fsm.Mode, time.Duration)
	// Waited is told how long each lock of an acquisition that was granted took at this node's door,
	// from the request to the answer.
	Waited func(fsm.Mode, time.Duration)
	// Refused is told how a ticket ended that was never granted, Lost how a grant ended that its holder
	// had not given back, SessionEnded why a session is over.
	Refused, Lost, SessionEnded func(fsm.Reason)
	// StreamOpened and StreamEnded are told of sessions' streams; ended cleanly with reason "".
	StreamOpened func()
	StreamEnded  func(reason string)
	// Pushed is told how long it took from the moment at which the oldest message of a frame was queued for
	// a stream, which for a grant is when it was applied, until the frame was handed to the connection.
	Pushed func(time.Duration)
}

func (o *Observer) waited(items []fsm.Item, d time.Duration) {
	if o.Waited == nil {
		return
	}
	for i := range items {
		o.Waited(items[i].Mode, d)
	}
}

// pushed: zero = nothing was queued that anybody waited for.
func (o *Observer) pushed(since time.Time) {
	if o.Pushed != nil && !since.IsZero() {
		o.Pushed(time.Since(since))
	}
}

func (o *Observer) streamOpened() {
	if o.StreamOpened != nil {
		o.StreamOpened()
	}
}

func (o *Observer) streamEnded(reason string) {
	if o.StreamEnded != nil {
		o.StreamEnded(reason)
	}
}

// tally turns the machine's events into what the observer is told, while this node leads.
type tally struct {
	to *Observer

	mu    sync.Mutex // guards what follows
	leads bool
	since map[fsm.TicketRef]clock.Time // when held tickets were granted; nil if nobody asks
}

func newTally(to *Observer) *tally { return &tally{to: to} }

// setLeading begins or ends the counting.
func (t *tally) setLeading(open bool) {
	t.mu.Lock()
	t.leads = open
	t.since = nil
	if open && t.to.Held != nil {
		t.since = make(map[fsm.TicketRef]clock.Time)
	}
	t.mu.Unlock()
	if t.to.Epoch != nil {
		t.to.Epoch(open)
	}
}

// applied counts an entry. It runs under the machine's lock.
func (t *tally) applied(a fsm.Applied) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.leads {
		return
	}
	for i := range a.Events {
		t.count(&a.Events[i], a.Time)
	}
}

func (t *tally) count(e *fsm.Event, now clock.Time) {
	tell := func(f func(fsm.Reason)) {
		if f != nil {
			f(e.Reason)
		}
	}
	switch e.Kind {
	case fsm.EvGranted:
		if t.since != nil {
			t.since[e.TicketRef] = now
		}
		for j := range e.Items {
			if t.to.Granted != nil {
				t.to.Granted(e.Items[j].Mode)
			}
		}
	case fsm.EvRefused:
		tell(t.to.Refused)
	case fsm.EvLost:
		tell(t.to.Lost)
		t.held(e, now)
	case fsm.EvReleased:
		t.held(e, now)
	case fsm.EvSessionEnded:
		tell(t.to.SessionEnded)
	}
}

func (t *tally) held(e *fsm.Event, now clock.Time) {
	since, ok := t.since[e.TicketRef]
	if !ok {
		return
	}
	delete(t.since, e.TicketRef)
	for j := range e.Items {
		t.to.Held(e.Items[j].Mode, now.Sub(since).Duration())
	}
}
