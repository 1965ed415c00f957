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

// fullStack is the whole stack under load: nodes that serve, programs that use package client on machines of
// their own, a script that uses the wire directly, and an operator.
type fullStack struct {
	*Sim
	record      *Recorder
	callers     []*clientHost
	operator    *clientHost
	replacement replacement
	ending      context.Context // ends when programs are to begin nothing new
	cancel      context.CancelFunc
	background  []func() // end what runs beside the callers, and wait for it
	watched     []watchedBatch
	leaders     []client.Leader // as they were told
}

// ttls are those of the callers' sessions, in turns. The shortest is such that it does not always
// outlive a change of leader.
var ttls = []time.Duration{4 * time.Second, 5 * time.Second, 10 * time.Second}

// drainMax is how long a call may take that was under way at the healing: some have many before them.
const drainMax = 90 * time.Second

// startFullStack starts a cluster that serves, with so many machines of callers.
func (s *Sim) startFullStack(callers int) *fullStack {
	w := &fullStack{Sim: s, record: s.NewRecorder()}
	w.ending, w.cancel = context.WithCancel(context.Background())
	s.Start()
	w.record.recordIdleCounts(false)
	w.operator = &clientHost{sim: s, record: w.record, host: "op"}
	for i := range callers {
		w.callers = append(w.callers, &clientHost{
			sim: s, record: w.record, host: fmt.Sprint("c", i+1), configure: func(cfg *client.Config) {
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
	s.cleanup(func() {
		w.cancel()
		for _, c := range append(w.callers, w.operator) {
			c.kill()
		}
		for _, end := range w.background {
			end()
		}
	})
	w.operator.start(w.runOperator, w.watch, w.observeLeaders)
	for _, c := range w.callers {
		w.startClient(c)
	}
	looks := time.NewTicker(5 * time.Second)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for w.ending.Err() == nil {
			select {
			case <-looks.C:
				w.record.recordNodeStates()
			case <-w.ending.Done():
			}
		}
	}()
	w.background = append(w.background, func() { <-stopped }, w.runRawClient(rawClientHost))
	return w
}

// startClient starts a caller's program.
func (w *fullStack) startClient(c *clientHost) {
	work := make([]func(*clientProcess, *rand.Rand), threadsPerClient)
	for i := range work {
		work[i] = func(p *clientProcess, random *rand.Rand) {
			cfg := client.Config{}
			c.configure(&cfg)
			t := &worker{clientProcess: p, Rand: random, owner: fmt.Sprint("owner ", i), ttl: cfg.TTL, ignoresLoss: i == 0}
			for w.ending.Err() == nil && t.running() {
				t.randomStep()
				_ = sleepContext(p.ctx, time.Duration(random.Int64N(int64(thinkTimeMax))))
			}
		}
	}
	c.start(work...)
}

// runOperator is what an operator does: looks, and now and then ends what others hold.
func (w *fullStack) runOperator(p *clientProcess, random *rand.Rand) {
	t := &worker{clientProcess: p, Rand: random}
	for w.ending.Err() == nil && t.sleep(time.Duration(random.Int64N(int64(2*thinkTimeMax)))) {
		d := t.get(t.mutex())
		if d == nil || len(d.Held) == 0 || random.IntN(operatorFaultRatio) != 0 {
			continue
		}
		held := d.Held[0]
		if random.IntN(3) > 0 {
			w.forceRelease(t, d.Name, uint64(held.Token))
		} else {
			w.expireSession(t, held.Session)
		}
	}
}

func (w *fullStack) forceRelease(t *worker, name string, token uint64) {
	op := w.record.recordCall(check.Op{Client: t.label, Kind: check.OpForceRelease, Items: []check.Item{{Name: name}}, Token: token})
	_, err := t.ForceRelease(t.ctx, name, client.Token(token), "a test")
	w.record.recordReturn(op, func(op *check.Op) { op.Outcome = tell.Outcome(err) })
}

func (w *fullStack) expireSession(t *worker, session uint64) {
	op := w.record.recordCall(check.Op{Client: t.label, Kind: check.OpExpireSession, Ref: check.Ref{Session: session}})
	err := t.ExpireSession(t.ctx, session, "a test")
	w.record.recordReturn(op, func(op *check.Op) { op.Outcome = tell.Outcome(err) })
}

// watch follows all locks, and sees that nothing is left out, told twice or told wrongly.
func (w *fullStack) watch(p *clientProcess, _ *rand.Rand) {
	for w.ending.Err() == nil && p.ctx.Err() == nil {
		var last uint64
		begun := false
		ctx, cancel := context.WithCancel(p.ctx)
		stop := context.AfterFunc(w.ending, cancel)
		for batch, err := range p.Watch(ctx, "", 0) {
			if err != nil {
				if !errors.Is(err, client.ErrCompacted) && ctx.Err() == nil {
					w.Errorf("a watch ended: %v", err)
				}
				break
			}
			if begun {
				w.recordBatch(last, batch)
			}
			begun, last = true, batch.Index
		}
		stop()
		cancel()
		_ = sleepContext(p.ctx, 100*time.Millisecond)
	}
}

// observeLeaders follows who is elected.
func (w *fullStack) observeLeaders(p *clientProcess, _ *rand.Rand) {
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	defer context.AfterFunc(w.ending, cancel)()
	for ctx.Err() == nil {
		for leader, err := range p.Election(electionName).Observe(ctx) {
			if err != nil {
				break // nobody could be asked: begin again
			}
			w.leaders = append(w.leaders, leader)
		}
		_ = sleepContext(ctx, 100*time.Millisecond)
	}
}

// checkLeaders sees that who was told to be elected was, and in the order of their tokens.
func (w *fullStack) checkLeaders() (count int) {
	elected := map[client.Token]fsm.TicketRef{}
	for _, e := range w.Audit.Entries() {
		for _, ev := range e.Events {
			if ev.Kind == fsm.EvGranted && ev.Items[0].Name == electionName {
				elected[client.Token(ev.Token)] = ev.TicketRef
			}
		}
	}
	last := client.Leader{}
	for _, l := range w.leaders {
		if l.Token == 0 {
			continue // nobody was
		}
		count++
		if checkRef(elected[l.Token]) != (check.Ref{Session: l.Session, Ticket: l.Ticket}) {
			w.Errorf("%+v was told to be elected; with this token it was %v", l, elected[l.Token])
		}
		if l.Token < last.Token {
			w.Errorf("%+v was told to be elected, after %+v", l, last)
		}
		last = l
	}
	return count
}

// recordBatch takes down what a watch told.
func (w *fullStack) recordBatch(after uint64, batch client.EventBatch) {
	for _, ev := range batch.Events {
		w.record.recordEvent(check.Event{
			Node: "watch", Index: ev.Index, Kind: check.EventKind(ev.Kind.String()),
			Ref:   check.Ref{Session: ev.Session, Ticket: ev.Ticket},
			Token: uint64(ev.Token), Reason: ev.Reason, Items: tell.Items(ev.Items),
		})
	}
	w.watched = append(w.watched, watchedBatch{after, batch.Index, len(batch.Events)})
}

// watchedBatch is a moment of a watch: so many events at an index, and none between the moment before and it.
type watchedBatch struct {
	after, index uint64
	events       int
}

// checkWatch sees that the watch left nothing out and told nothing twice; what it told of each event is
// held against the others' word by package check. It returns how many events it told.
func (w *fullStack) checkWatch() (count int) {
	var indexes []uint64 // of all events of locks and sessions, rising
	for _, e := range w.Audit.Entries() {
		for _, ev := range e.Events {
			if eventKinds[ev.Kind] != "" {
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
		count += m.events
		if n := upTo(m.index) - upTo(m.after); n != m.events {
			w.Errorf("the watch told %d events after index %d up to %d, and there were %d", m.events, m.after, m.index, n)
		}
	}
	return count
}
