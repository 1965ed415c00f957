package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"zamok/client"
	"zamok/fsm"
	"zamok/jepsen/check"
	"zamok/jepsen/tell"
)

// whole is the whole stack under load: nodes that serve, programs that use package client on machines of
// their own, a script that uses the wire directly, and an operator.
type whole struct {
	*Sim
	record      *Record
	callers     []*caller
	operator    *caller
	replacement replacement
	over        context.Context // ends when programs are to begin nothing new
	finish      context.CancelFunc
	background  []func() // end what runs beside the callers, and wait for it
	watched     []watched
	leaders     []client.Leader // as they were told
}

// ttls are those of the callers' sessions, in turns. The shortest is such that it does not always
// outlive a change of leader.
var ttls = []time.Duration{4 * time.Second, 5 * time.Second, 10 * time.Second}

// drainMost is how long a call may take that was under way at the healing: some have many before them.
const drainMost = 90 * time.Second

// whole starts a cluster that serves, with so many machines of callers.
func (s *Sim) whole(callers int) *whole {
	w := &whole{Sim: s, record: s.Record()}
	w.over, w.finish = context.WithCancel(context.Background())
	s.Start()
	w.record.atRest(false)
	w.operator = &caller{sim: s, record: w.record, host: "op"}
	for i := range callers {
		w.callers = append(w.callers, &caller{
			sim: s, record: w.record, host: fmt.Sprint("c", i+1), change: func(cfg *client.Config) {
				cfg.TTL = ttls[i%len(ttls)]
				switch i % 4 {
				case 1:
					cfg.LockDelay = 500 * time.Millisecond
				case 3:
					cfg.ReleaseOnDisconnect = time.Second
				}
			},
		})
	}
	s.atEnd(func() {
		w.finish()
		for _, c := range append(w.callers, w.operator) {
			c.kill()
		}
		for _, end := range w.background {
			end()
		}
	})
	w.operator.start(w.operate, w.watch, w.observe)
	for _, c := range w.callers {
		w.begin(c)
	}
	looks := time.NewTicker(5 * time.Second)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for w.over.Err() == nil {
			select {
			case <-looks.C:
				w.record.look()
			case <-w.over.Done():
			}
		}
	}()
	w.background = append(w.background, func() { <-stopped }, w.runScript(scriptHost))
	return w
}

// begin starts a caller's program.
func (w *whole) begin(c *caller) {
	work := make([]func(*app, *rand.Rand), threadsOf)
	for i := range work {
		work[i] = func(p *app, random *rand.Rand) {
			cfg := client.Config{}
			c.change(&cfg)
			t := &thread{app: p, Rand: random, owner: fmt.Sprint("owner ", i), ttl: cfg.TTL, careless: i == 0}
			for w.over.Err() == nil && t.step() {
				t.one()
				_ = pauseFor(p.ctx, time.Duration(random.Int64N(int64(thinkMost))))
			}
		}
	}
	c.start(work...)
}

// operate is what an operator does: looks, and now and then ends what others hold.
func (w *whole) operate(p *app, random *rand.Rand) {
	t := &thread{app: p, Rand: random}
	for w.over.Err() == nil && t.rest(time.Duration(random.Int64N(int64(2*thinkMost)))) {
		d := t.get(t.mutex())
		if d == nil || len(d.Held) == 0 || random.IntN(operatorIn) != 0 {
			continue
		}
		held := d.Held[0]
		if random.IntN(3) > 0 {
			w.force(t, d.Name, uint64(held.Token))
		} else {
			w.expire(t, held.Session)
		}
	}
}

func (w *whole) force(t *thread, name string, token uint64) {
	op := w.record.call(check.Op{Client: t.label, Kind: check.OpForce, Items: []check.Item{{Name: name}}, Token: token})
	_, err := t.ForceRelease(t.ctx, name, client.Token(token), "a test")
	w.record.done(op, func(op *check.Op) { op.Outcome = tell.Outcome(err) })
}

func (w *whole) expire(t *thread, session uint64) {
	op := w.record.call(check.Op{Client: t.label, Kind: check.OpExpire, Ref: check.Ref{Session: session}})
	err := t.ExpireSession(t.ctx, session, "a test")
	w.record.done(op, func(op *check.Op) { op.Outcome = tell.Outcome(err) })
}

// watch follows all locks, and sees that nothing is left out, told twice or told wrongly.
func (w *whole) watch(p *app, _ *rand.Rand) {
	for w.over.Err() == nil && p.ctx.Err() == nil {
		var last uint64
		begun := false
		ctx, cancel := context.WithCancel(p.ctx)
		stop := context.AfterFunc(w.over, cancel)
		for moment, err := range p.Watch(ctx, "", 0) {
			if err != nil {
				if !errors.Is(err, client.ErrCompacted) && ctx.Err() == nil {
					w.Errorf("a watch ended: %v", err)
				}
				break
			}
			if begun {
				w.told(last, moment)
			}
			begun, last = true, moment.Index
		}
		stop()
		cancel()
		_ = pauseFor(p.ctx, 100*time.Millisecond)
	}
}

// observe follows who is elected.
func (w *whole) observe(p *app, _ *rand.Rand) {
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	defer context.AfterFunc(w.over, cancel)()
	for ctx.Err() == nil {
		for leader, err := range p.Election(office).Observe(ctx) {
			if err != nil {
				break // nobody could be asked: begin again
			}
			w.leaders = append(w.leaders, leader)
		}
		_ = pauseFor(ctx, 100*time.Millisecond)
	}
}

// checkLeaders sees that who was told to be elected was, and in the order of their tokens.
func (w *whole) checkLeaders() (told int) {
	elected := map[client.Token]fsm.TicketRef{}
	for _, e := range w.Audit.Entries() {
		for _, ev := range e.Events {
			if ev.Kind == fsm.EvGranted && ev.Items[0].Name == office {
				elected[client.Token(ev.Token)] = ev.TicketRef
			}
		}
	}
	last := client.Leader{}
	for _, l := range w.leaders {
		if l.Token == 0 {
			continue // nobody was
		}
		told++
		if refOf(elected[l.Token]) != (check.Ref{Session: l.Session, Ticket: l.Ticket}) {
			w.Errorf("%+v was told to be elected; with this token it was %v", l, elected[l.Token])
		}
		if l.Token < last.Token {
			w.Errorf("%+v was told to be elected, after %+v", l, last)
		}
		last = l
	}
	return told
}

// told takes down what a watch told.
func (w *whole) told(after uint64, moment client.EventBatch) {
	for _, ev := range moment.Events {
		w.record.told(check.Event{
			Node: "watch", Index: ev.Index, Happened: check.Happened(ev.Kind.String()),
			Ref:   check.Ref{Session: ev.Session, Ticket: ev.Ticket},
			Token: uint64(ev.Token), Why: ev.Reason, Items: tell.Items(ev.Items),
		})
	}
	w.watched = append(w.watched, watched{after, moment.Index, len(moment.Events)})
}

// watched is a moment of a watch: so many events at an index, and none between the moment before and it.
type watched struct {
	after, index uint64
	events       int
}

// checkWatch sees that the watch left nothing out and told nothing twice; what it told of each event is
// held against the others' word by package check. It returns how many events it told.
func (w *whole) checkWatch() (told int) {
	var indexes []uint64 // of all events of locks and sessions, rising
	for _, e := range w.Audit.Entries() {
		for _, ev := range e.Events {
			if happenedOf[ev.Kind] != "" {
				indexes = append(indexes, ev.Index)
			}
		}
	}
	slices.Sort(indexes)
	upTo := func(index uint64) int {
		n, _ := slices.BinarySearch(indexes, index+1)
		return n
	}
	for _, m := range w.watched {
		told += m.events
		if n := upTo(m.index) - upTo(m.after); n != m.events {
			w.Errorf("the watch told %d events after index %d up to %d, and there were %d", m.events, m.after, m.index, n)
		}
	}
	return told
}
