package main

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"zamok/client"
	"zamok/jepsen/check"
	"zamok/jepsen/tell"
)

// What programs do with package client: everything that it offers, at random.

const (
	mutexes   = 200
	pools     = 16
	poolOf    = 3
	holdMost  = 8 * time.Millisecond
	holdLong  = 1500 * time.Millisecond
	waitMost  = 2 * time.Second
	thinkMost = 8 * time.Millisecond
	holdLook  = 100 * time.Millisecond
	threadsOf = 10 // of each client
	// drainMost is how long a call may take that was under way at the healing.
	drainMost = 60 * time.Second
)

// ttls are those of the clients of a process, in turns.
var ttls = []time.Duration{4 * time.Second, 5 * time.Second, 10 * time.Second}

// settings are those of the i-th client of a process.
func settings(i int) (cfg client.Config) {
	cfg.TTL = ttls[i%len(ttls)]
	switch i % 4 {
	case 1:
		cfg.LockDelay = 300 * time.Millisecond
	case 3:
		cfg.ReleaseOnDisconnect = time.Second
	}
	return cfg
}

// labelOf is the name of the i-th client of a process.
func labelOf(process string, i int) string { return fmt.Sprintf("%s.%d", process, i+1) }

// caller is one client.Client and what is recorded of it.
type caller struct {
	*client.Client
	record *record
	label  string
	cfg    client.Config
	ctx    context.Context // ends when its process gives up
	over   context.Context // ends when nothing new is to begin

	mu       sync.Mutex // guards what follows
	sessions map[uint64]bool
}

// thread is one goroutine of a program, an owner of locks.
type thread struct {
	*caller
	*rand.Rand
	owner string
	pen   *pen
}

// newCaller makes a client whose connections come from an address of this process's own.
func newCaller(o *order, r *record, cfg client.Config, label string) (*caller, error) {
	cfg.Endpoints, cfg.Label, cfg.Dialer = o.Endpoints, label, dialFrom(o.Address)
	cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	c := &caller{record: r, label: label, cfg: cfg, sessions: map[uint64]bool{}}
	var err error
	c.Client, err = client.New(cfg)
	return c, err
}

// run works until nothing new is to begin.
func (t *thread) run() {
	for t.over.Err() == nil {
		t.one()
		pause(t.over, time.Duration(t.Int64N(int64(thinkMost))))
	}
}

// one is one random call, with what follows from it.
func (t *thread) one() {
	switch t.IntN(20) {
	case 0, 1:
		t.now()
	case 2, 3, 4, 5:
		t.get(t.mutex())
	default:
		if l, h := t.acquire(t.IntN(2) == 0); l != nil {
			t.hold(l, h, 0)
		}
	}
}

func (t *thread) mutex() string { return fmt.Sprint("m", t.IntN(mutexes)) }

// wish is what a thread asks for.
func (t *thread) wish() (items []client.Item, opts []client.Option) {
	switch n := t.IntN(10); {
	case n < 5:
		items = append(items, client.ExclusiveItem(t.mutex()))
	case n < 7:
		items = append(items, client.SharedItem(t.mutex()))
	case n < 9:
		items = append(items, client.PermitsItem(fmt.Sprint("p", t.IntN(pools)), 1+t.Uint32N(2), poolOf))
	default:
		for _, i := range t.Perm(mutexes)[:2+t.IntN(2)] {
			item := client.ExclusiveItem(fmt.Sprint("m", i))
			if t.IntN(3) == 0 {
				item = client.SharedItem(item.Name())
			}
			items = append(items, item)
		}
	}
	if t.IntN(8) == 0 {
		opts = append(opts, client.WithMaxHold(time.Second+time.Duration(t.Int64N(int64(time.Second)))))
	}
	return items, opts
}

// acquire asks for something, and takes down what came of it.
func (t *thread) acquire(bounded bool) (*client.Lock, *check.Hold) {
	items, opts := t.wish()
	if t.IntN(2) == 0 {
		opts = append(opts, client.WithOwner(t.owner))
	}
	kind := check.OpLock
	if t.IntN(3) == 0 {
		kind = check.OpTryLock
	}
	ctx, cancel := t.ctx, context.CancelFunc(func() {})
	if bounded {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(t.Int64N(int64(waitMost))))
	}
	defer cancel()
	return t.ask(ctx, kind, items, opts)
}

func (t *thread) ask(ctx context.Context, kind check.Kind, items []client.Item, opts []client.Option) (*client.Lock, *check.Hold) {
	ask := t.LockAll
	if kind == check.OpTryLock {
		ask = t.TryLockAll
	}
	op := t.record.call(check.Op{Client: t.label, Kind: kind, Items: tell.Items(items)})
	var queued time.Duration
	if kind == check.OpLock {
		opts = append(opts, client.OnPosition(func(client.Position) {
			if queued == 0 {
				queued = now()
			}
		}))
	}
	l, err := ask(ctx, items, opts...)
	var h *check.Hold
	if err == nil {
		ref := check.Ref{Session: l.Session(), Ticket: l.Ticket()}
		t.lives(ref.Session)
		h = &check.Hold{Client: t.label, Ref: ref, Token: uint64(l.Token()), Items: op.Items, From: now()}
		t.record.put(check.Record{Hold: h})
	}
	t.record.done(op, func(op *check.Op) {
		op.Outcome = tell.Outcome(err)
		if err != nil {
			op.Error = err.Error()
			return
		}
		op.Ref, op.Token, op.Queued = h.Ref, h.Token, queued
	})
	return l, h
}

// lives takes down a session when it is first seen.
func (c *caller) lives(session uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.sessions[session] {
		c.sessions[session] = true
		c.record.put(check.Record{Session: &check.Session{
			Session: session, Client: c.label, TTL: orElse(c.cfg.TTL, client.DefaultTTL), Disconnect: c.cfg.ReleaseOnDisconnect != 0,
		}})
	}
}

func orElse(d, otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return d
}

// held is a hold of which two goroutines may see the end.
type held struct {
	*check.Hold
	mu sync.Mutex
}

// believed takes down that a hold is over, once.
func (t *thread) believed(h *held, how check.How, why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.To == 0 {
		h.To, h.How, h.Why = now(), how, why
		t.record.put(check.Record{Hold: h.Hold})
	}
}

// hold keeps a grant for a while, works under it, and gives it back. depth is how many it holds already.
func (t *thread) hold(l *client.Lock, hold *check.Hold, depth int) {
	h := &held{Hold: hold}
	most := holdMost
	if t.IntN(100) == 0 {
		most = holdLong
	}
	until := time.Now().Add(time.Duration(t.Int64N(int64(most))))
	limited := slices.ContainsFunc(h.Items, func(it check.Item) bool { return it.Mode == check.Permits })
	shared, look := false, time.NewTimer(holdLook)
	defer look.Stop()
	told := make(chan struct{})
	stop := context.AfterFunc(l.Context(), func() {
		defer close(told)
		t.believed(h, check.Lost, tell.Lost(l.Err()))
	})
	for first := true; first || time.Now().Before(until) && t.over.Err() == nil; first = false {
		if l.Err() != nil {
			break
		}
		t.beatOf(l)
		t.write(h.Hold, shared)
		switch n := t.IntN(30); {
		case n < 2:
			t.check(h.Hold)
		case n == 2 && !limited && !shared:
			shared = t.downgrade(l, h)
		case n == 3 && depth == 0:
			// Without an owner on both sides nobody finds the deadlock that this may be: hence bounded.
			if inner, under := t.acquire(true); inner != nil {
				t.hold(inner, under, depth+1)
			}
		}
		look.Reset(min(time.Until(until), holdLook))
		select {
		case <-l.Lost():
		case <-look.C:
		}
	}
	t.unlock(l, h)
	if !stop() {
		<-told
	}
}

// unlock ends a hold: by what it was lost for, or by its release.
func (t *thread) unlock(l *client.Lock, h *held) {
	if err := l.Err(); err != nil {
		t.believed(h, check.Lost, tell.Lost(err))
	} else {
		t.believed(h, check.Unlocked, "")
	}
	op := t.record.call(check.Op{Client: t.label, Kind: check.OpUnlock, Ref: h.Ref, Items: h.Items})
	err := l.Unlock(t.ctx)
	t.record.done(op, func(op *check.Op) {
		if op.Outcome = tell.Outcome(err); err != nil {
			op.Error = err.Error()
		}
	})
}

// write writes to what the held mutexes guard.
func (t *thread) write(h *check.Hold, shared bool) {
	for _, it := range h.Items {
		if it.Mode != check.Permits {
			// Without the resource there is no run any more.
			_ = t.pen.write(it.Name, t.label, h.Token, shared || it.Mode == check.Shared)
		}
	}
}

func (t *thread) downgrade(l *client.Lock, h *held) bool {
	if !slices.ContainsFunc(h.Items, func(it check.Item) bool { return it.Mode == check.Exclusive }) {
		return false
	}
	h.mu.Lock()
	h.Downgraded = now()
	t.record.put(check.Record{Hold: h.Hold})
	h.mu.Unlock()
	op := t.record.call(check.Op{Client: t.label, Kind: check.OpDowngrade, Ref: h.Ref, Items: h.Items})
	err := l.Downgrade(t.ctx)
	t.record.done(op, func(op *check.Op) {
		if op.Outcome = tell.Outcome(err); err != nil { // also if it was lost: perhaps after it was shared
			op.Outcome, op.Error = check.Unknown, err.Error()
		}
	})
	return true
}

func (t *thread) check(h *check.Hold) {
	it := h.Items[t.IntN(len(h.Items))]
	op := t.record.call(check.Op{Client: t.label, Kind: check.OpCheck, Ref: h.Ref, Items: []check.Item{it}, Token: h.Token})
	held, at, err := t.Check(t.ctx, client.Grant{
		Name: it.Name, Token: client.Token(h.Token), Session: h.Session, Ticket: h.Ticket,
	})
	t.record.done(op, func(op *check.Op) { op.Held = held; read(op, at, err) })
}

func (t *thread) now() (ok bool) {
	op := t.record.call(check.Op{Client: t.label, Kind: check.OpNow})
	at, err := t.Now(t.ctx)
	t.record.done(op, func(op *check.Op) { read(op, at, err) })
	return err == nil
}

// served asks until there is an answer: a call has its own limit, which a busy machine may exceed.
func (t *thread) served() {
	for !t.now() && pause(t.ctx, 100*time.Millisecond) {
	}
}

// get looks at a lock.
func (t *thread) get(name string) *client.LockDetail {
	op := t.record.call(check.Op{Client: t.label, Kind: check.OpGet, Items: []check.Item{{Name: name}}})
	d, err := t.Get(t.ctx, name, 0)
	t.record.done(op, func(op *check.Op) {
		if err != nil {
			read(op, client.Stamp{}, err)
			return
		}
		read(op, d.Stamp, nil)
		for _, held := range d.Held {
			op.Holders = append(op.Holders, check.Ref{Session: held.Session, Ticket: held.Ticket})
		}
	})
	if err != nil {
		return nil
	}
	return d
}

// read takes down the answer of a read.
func read(op *check.Op, at client.Stamp, err error) {
	if err != nil {
		op.Outcome, op.Error = check.Unknown, err.Error()
		return
	}
	op.Outcome, op.Term, op.Index, op.Time = check.OK, at.Term, at.Index, at.Time
}

// beatOf is what a handle's deadline tells: when that was sent which was answered with proof last. A pause
// between the two readings makes it earlier, which only asks for less.
func (t *thread) beatOf(l *client.Lock) {
	at := now()
	left := time.Until(l.Deadline())
	if left <= 0 || l.Err() != nil {
		return
	}
	margin := max(t.cfg.TTL/20, 200*time.Millisecond)
	age := t.cfg.TTL - margin - left + 5*time.Millisecond
	t.record.put(check.Record{Beat: &check.Beat{Session: l.Session(), Sent: at - age, Back: at}})
}

// last is what a client does last: it must succeed.
func (t *thread) last() {
	if l, h := t.ask(t.ctx, check.OpLock, []client.Item{client.ExclusiveItem("last of " + t.label)}, nil); l != nil {
		t.write(h, false)
		t.check(h)
		t.unlock(l, &held{Hold: h})
	}
	t.served()
}
