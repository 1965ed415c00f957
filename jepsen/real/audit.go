package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"zamok/client"
	"zamok/jepsen/check"
	"zamok/jepsen/tell"
)

// The audit sees what happens to all locks and when sessions end, by watching; who has sessions and how long
// cluster time stood, by asking again and again; and for how long a client that wants nothing but its own lock
// can't have it. It is also the operator who takes locks away.
//
// Nothing is asked of the cluster before the watch has begun and the sessions were listed once, and the audit
// ends after the last session of the programs: so what is not in its record did not happen.

const (
	sessionsEvery = 250 * time.Millisecond
	probeEvery    = 20 * time.Millisecond
	operateMost   = 2 * time.Second
	watchedWithin = 30 * time.Second
	// watchTries is how often the watch asks on when a node says that it does not remember.
	watchTries = 50
	// heldFrom is how long nobody may see the sessions before that counts as a time without commits.
	heldFrom = time.Second
	listMost = 1000
	// operatorIn: one look in so many of the operator's is followed by harm.
	operatorIn = 3
	prober     = "probe"
)

// auditors are the audit's clients.
var auditors = []string{"watch", "operator", prober}

type audit struct {
	*order
	record *record
	ctx    context.Context
	over   context.Context
	begun  sync.WaitGroup // the watch, and the list of sessions

	mu       sync.Mutex // guards what follows
	gaps     []string
	released map[check.Ref]bool // of the audit's last lock, once the watch told it
}

func (o *order) audit(ctx, over context.Context, r *record) error {
	a := &audit{order: o, record: r, ctx: ctx, over: over, released: map[check.Ref]bool{}}
	var callers []*caller
	for _, label := range auditors {
		c, err := newCaller(o, r, client.Config{TTL: 5 * time.Second}, label)
		if err != nil {
			return err
		}
		c.ctx, c.over = ctx, over
		callers = append(callers, c)
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	var watcher, work sync.WaitGroup
	a.begun.Add(2)
	watcher.Go(func() { a.watch(watching, callers[0]) })
	work.Go(func() { a.sessions(callers[0]) })
	a.begun.Wait()
	a.begins()
	for i, do := range []func(*thread){a.operate, a.probe} {
		t, err := o.thread(callers[1+i], "audit")
		if err != nil {
			return err
		}
		work.Go(func() { do(t) })
	}
	work.Wait()
	t, err := o.thread(callers[2], "last")
	if err != nil {
		return err
	}
	a.last(t)
	stop()
	watcher.Wait()
	for _, c := range callers {
		err = errors.Join(err, c.Close())
	}
	return errors.Join(err, os.WriteFile(o.Gaps, []byte(strings.Join(a.gaps, "\n")), 0o644))
}

// gap takes down that something was not seen.
func (a *audit) gap(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gaps = append(a.gaps, fmt.Sprintf(format, args...))
}

// watch follows all locks and sessions from the first index that it is told.
func (a *audit) watch(ctx context.Context, c *caller) {
	begun := sync.OnceFunc(a.begun.Done)
	defer begun()
	var from uint64
	tries := 0
	for ctx.Err() == nil {
		for moment, err := range c.Watch(ctx, "", from) {
			if err == nil {
				from, tries = moment.Index, 0
				begun()
				a.told(moment)
				continue
			}
			// What one node does not remember, another may: one that took in a snapshot remembers nothing.
			if tries++; ctx.Err() == nil && (!errors.Is(err, client.ErrCompacted) || tries == watchTries) {
				a.gap("the watch ended after index %d: %v", from, err)
				from = 0
			}
			break
		}
		pause(ctx, 100*time.Millisecond)
	}
}

// begins says that the audit has begun: nothing that is done from now on is missed.
func (a *audit) begins() {
	if err := os.WriteFile(watching(a.Gaps), nil, 0o644); err != nil {
		a.gap("nobody can be told that the audit has begun: %v", err)
	}
}

// watching is a file beside that of the gaps; it is there once the audit has begun.
func watching(gaps string) string { return gaps + ".watching" }

func (a *audit) told(moment client.EventBatch) {
	at := now()
	for _, ev := range moment.Events {
		ref := check.Ref{Session: ev.Session, Ticket: ev.Ticket}
		if ev.Kind == client.EventCancelled { // the checker asks the token whether there was a grant
			ev.Kind = client.EventReleased
		}
		a.record.put(check.Record{Event: &check.Event{
			Node: "watch", At: at, Index: ev.Index, Happened: check.Happened(ev.Kind.String()),
			Ref: ref, Token: uint64(ev.Token), Why: ev.Reason, Items: tell.Items(ev.Items), Client: ev.Label,
		}})
		if ev.Kind == client.EventReleased && a.over.Err() != nil {
			a.mu.Lock()
			a.released[ref] = true
			a.mu.Unlock()
		}
	}
}

// sessions lists them again and again. What is missing of the cluster's time between two answers is time that
// did not pass; and one that is listed no more has ended: the watch has that too, but may have it late, as when
// its node is paused. When all is over it waits for the sessions of the killed programs.
func (a *audit) sessions(c *caller) {
	begun := sync.OnceFunc(a.begun.Done)
	defer begun()
	patience, giveUp := context.WithCancel(a.ctx)
	defer giveUp()
	stop := context.AfterFunc(a.over, func() { time.AfterFunc(drainMost, giveUp) })
	defer stop()
	live := map[uint64]string{}
	var before client.Stamp
	var asked time.Duration // when the answer before was asked for
	for done := false; !done && patience.Err() == nil; {
		over, call := a.over.Err() != nil, now()
		list, at, err := c.Sessions(patience, 0, listMost)
		back := now()
		if err == nil {
			begun()
			if len(list) == listMost {
				a.gap("there are %d sessions, and perhaps more", listMost)
			}
			a.compare(live, list, back)
			done = over && !slices.ContainsFunc(list, func(s client.SessionInfo) bool { return !slices.Contains(auditors, s.Label) })
			if asked != 0 {
				if back-asked > heldFrom {
					a.record.put(check.Record{Stall: &check.Stall{Why: "no answer", From: asked, To: back, Held: true}})
				}
				if lost := back - asked - (at.Time - before.Time); lost > 0 {
					a.record.put(check.Record{Stall: &check.Stall{Why: "cluster time stood", From: asked, To: back, Lost: lost}})
				}
			}
			before, asked = at, call
		}
		pause(patience, sessionsEvery)
	}
}

func (a *audit) compare(live map[uint64]string, list []client.SessionInfo, back time.Duration) {
	listed := map[uint64]bool{}
	for _, s := range list {
		listed[s.Session] = true
		if live[s.Session] == "" {
			live[s.Session] = s.Label
			a.record.put(check.Record{Session: &check.Session{
				Session: s.Session, Client: s.Label, TTL: s.TTL, Disconnect: disconnects(s.Label),
			}})
		}
	}
	for id := range live {
		if !listed[id] {
			delete(live, id)
			a.record.put(check.Record{Event: &check.Event{
				Node: "sessions", At: back, Happened: check.EvEnded, Ref: check.Ref{Session: id},
			}})
		}
	}
}

// disconnects tells from a client's name whether its locks are released when its connection breaks.
func disconnects(label string) bool {
	_, number, _ := strings.Cut(label, ".")
	n, err := strconv.Atoi(number)
	return err == nil && settings(n-1).ReleaseOnDisconnect != 0
}

// operate looks, and now and then ends what others hold.
func (a *audit) operate(t *thread) {
	for a.over.Err() == nil {
		pause(a.over, time.Duration(t.Int64N(int64(operateMost))))
		inUse, _, err := t.List(t.ctx, "", "", listMost)
		if err != nil || len(inUse) == 0 {
			continue
		}
		name := inUse[t.IntN(len(inUse))].Name
		d := t.get(name)
		if d == nil || len(d.Held) == 0 || name == prober || t.IntN(operatorIn) != 0 {
			continue
		}
		if held := d.Held[0]; t.IntN(3) > 0 {
			op := t.record.call(check.Op{
				Client: t.label, Kind: check.OpForce, Items: []check.Item{{Name: d.Name}}, Token: uint64(held.Token),
			})
			_, err := t.ForceRelease(t.ctx, d.Name, held.Token, "a test")
			t.record.done(op, func(op *check.Op) { op.Outcome = tell.Outcome(err) })
		} else {
			op := t.record.call(check.Op{Client: t.label, Kind: check.OpExpire, Ref: check.Ref{Session: held.Session}})
			err := t.ExpireSession(t.ctx, held.Session, "a test")
			t.record.done(op, func(op *check.Op) { op.Outcome = tell.Outcome(err) })
		}
	}
	t.served()
}

// probe locks and unlocks a lock of its own.
func (a *audit) probe(t *thread) {
	for a.over.Err() == nil {
		if l, h := t.ask(t.ctx, check.OpLock, []client.Item{client.ExclusiveItem(prober)}, nil); l != nil {
			t.unlock(l, &held{Hold: h})
		}
		pause(a.over, probeEvery)
	}
}

// last does the last thing of the whole run, and sees it in the watch: so nothing before it is missing.
func (a *audit) last(t *thread) {
	l, h := t.ask(a.ctx, check.OpLock, []client.Item{client.ExclusiveItem("last of the audit")}, nil)
	if l == nil {
		a.gap("the audit's last lock was not granted")
		return
	}
	t.unlock(l, &held{Hold: h})
	t.served()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for until := time.Now().Add(watchedWithin); time.Now().Before(until); <-tick.C {
		a.mu.Lock()
		seen := a.released[h.Ref]
		a.mu.Unlock()
		if seen {
			return
		}
	}
	a.gap("the watch did not tell of the audit's last release within %v", watchedWithin)
}
