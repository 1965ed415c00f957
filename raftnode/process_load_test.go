package raftnode

import (
	"context"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"zamok/clock"
	"zamok/fsm"
	"zamok/session"
)

const (
	// holdsMost is how many locks of its own a worker holds before it drops one.
	holdsMost = 6
	// sharedNames is how many locks all workers of a process contend for.
	sharedNames = 4
	// waitsMost is how long a worker waits in a queue.
	waitsMost = time.Second
	// insistEvery is how long a worker waits that had no answer: another node may lead.
	insistEvery = 25 * time.Millisecond
)

// load is what clients would do: acquire, wait, drop, and send again what had no answer. A worker
// writes down each answer before it does anything else.
type load struct {
	mouth  *mouth
	cancel context.CancelFunc
	busy   sync.WaitGroup

	mu    sync.Mutex
	waits map[fsm.TicketRef]chan uint64 // capacity 1; for the token
}

func newLoad(m *mouth) *load {
	return &load{mouth: m, cancel: func() {}, waits: make(map[fsm.TicketRef]chan uint64)}
}

// hear takes grants that were waited for; it runs under the machine's lock.
func (l *load) hear(events []fsm.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range events {
		if ch := l.waits[e.TicketRef]; ch != nil && e.Kind == fsm.EvGranted {
			ch <- e.Token
			delete(l.waits, e.TicketRef)
		}
	}
}

func (l *load) start(n *Node, workers, round int) {
	l.rest()
	var ctx context.Context
	ctx, l.cancel = context.WithCancel(context.Background())
	for i := range workers {
		w := &worker{load: l, node: n, name: fmt.Sprintf("%s/%d/%d", n.cfg.ID, round, i),
			shared: fmt.Sprintf("shared/%s/%d", n.cfg.ID, round)}
		l.busy.Go(func() { w.work(ctx) })
	}
}

// rest ends the load and returns when every worker has ended.
func (l *load) rest() {
	l.cancel()
	l.busy.Wait()
}

// worker is one client: one session, one command at a time.
type worker struct {
	*load
	node    *Node
	name    string
	shared  string
	session session.ID
	last    uint64          // ticket
	held    []fsm.TicketRef // locks of its own
}

func (w *worker) work(ctx context.Context) {
	open := &fsm.OpenSession{Settings: session.Settings{TTL: fsm.LongestTTLDefault, Label: w.name}}
	_, _ = rand.Read(open.Secret[:])
	a, ok := w.insist(ctx, open)
	if !ok {
		return
	}
	w.session = a.Result.Session
	w.mouth.say(said{Of: "opened", TicketRef: fsm.TicketRef{Session: w.session}})
	for ctx.Err() == nil {
		switch {
		case len(w.held) == holdsMost:
			i := mathrand.IntN(len(w.held))
			w.drop(ctx, w.held[i])
			w.held = append(w.held[:i], w.held[i+1:]...)
		case mathrand.IntN(3) == 0:
			name := fmt.Sprintf("%s/%d", w.shared, mathrand.IntN(sharedNames))
			if ref, granted := w.acquire(ctx, name, fsm.Forever); granted {
				w.drop(ctx, ref)
			}
		default:
			if ref, granted := w.acquire(ctx, fmt.Sprintf("%s/%d", w.name, w.last+1), 0); granted {
				w.held = append(w.held, ref)
			}
		}
	}
}

// acquire requests a lock, and waits in its queue if it must.
func (w *worker) acquire(ctx context.Context, name string, wait clock.Span) (fsm.TicketRef, bool) {
	w.last++
	ref := fsm.TicketRef{Session: w.session, Ticket: w.last}
	pushed := make(chan uint64, 1)
	w.mu.Lock()
	w.waits[ref] = pushed
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.waits, ref)
	}()
	a, ok := w.insist(ctx, &fsm.Acquire{
		Session: w.session, Ticket: w.last, AckedThrough: w.last - 1, Wait: wait,
		Items: []fsm.Item{{Name: name, Mode: fsm.Exclusive}},
	})
	if !ok {
		return ref, false
	}
	switch a.Result.State {
	case fsm.Granted:
		w.mouth.say(said{Of: "granted", TicketRef: ref, Name: name, Token: a.Result.Token})
		return ref, true
	case fsm.Ended:
		w.mouth.say(said{Of: "wrong", TicketRef: ref, Error: fmt.Sprintf("refused: %+v", a.Result)})
		return ref, false
	}
	limit := time.NewTimer(waitsMost)
	defer limit.Stop()
	select {
	case token := <-pushed:
		w.mouth.say(said{Of: "granted", TicketRef: ref, Name: name, Token: token})
		return ref, true
	case <-limit.C:
	case <-ctx.Done():
	}
	w.drop(ctx, ref)
	return ref, false
}

func (w *worker) drop(ctx context.Context, ref fsm.TicketRef) {
	w.mouth.say(said{Of: "dropping", TicketRef: ref})
	a, ok := w.insist(ctx, &fsm.Drop{Session: ref.Session, Ticket: ref.Ticket,
		AckedThrough: w.last})
	switch {
	case !ok:
	case a.Result.Code != fsm.OK:
		w.mouth.say(said{Of: "wrong", TicketRef: ref,
			Error: fmt.Sprintf("not dropped: %+v", a.Result)})
	default:
		w.mouth.say(said{Of: "dropped", TicketRef: ref})
	}
}

// insist sends a command again until it is answered. false: the load ended.
func (w *worker) insist(ctx context.Context, c fsm.Command) (Answer, bool) {
	for {
		a, err := w.node.Propose(ctx, c)
		if err == nil {
			return a, true
		}
		wait := time.NewTimer(insistEvery)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return Answer{}, false
		}
	}
}
