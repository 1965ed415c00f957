package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/rpc"
	"os"
	"slices"
	"sync"
	"time"

	"zamok/client"
	"zamok/jepsen/check"
)

// What programs do with package client: everything that it offers, at random.

const (
	mutexes          = 200
	pools            = 16
	permitsPerPool   = 3
	holdMax          = 8 * time.Millisecond
	longHold         = 1500 * time.Millisecond
	waitMax          = 2 * time.Second
	thinkTimeMax     = 8 * time.Millisecond
	lossPollInterval = 100 * time.Millisecond
	threadsPerClient = 10 // of each client
	// drainMax is how long a call may take that was under way at the healing.
	drainMax = 60 * time.Second
)

// ttls are those of the clients of a process, in turns.
var ttls = []time.Duration{4 * time.Second, 5 * time.Second, 10 * time.Second}

// clientConfig are those of the i-th client of a process.
func clientConfig(i int) (cfg client.Config) {
	cfg.TTL = ttls[i%len(ttls)]
	switch i % 4 {
	case 1:
		cfg.LockDelay = 300 * time.Millisecond
	case 3:
		cfg.ReleaseOnDisconnect = time.Second
	}
	return cfg
}

// clientLabels are the names of the clients of a process.
func clientLabels(process string) (all []string) {
	for i := range clientsPerProgram {
		all = append(all, fmt.Sprintf("%s.%d", process, i+1))
	}
	return all
}

// recordedClient is one client.Client and what is recorded of it.
type recordedClient struct {
	*client.Client
	*subprocess
	label string
	cfg   client.Config

	mu       sync.Mutex // guards what follows
	sessions map[uint64]bool
}

// worker is one goroutine of a program, an owner of locks.
type worker struct {
	*recordedClient
	*rand.Rand
	owner    string
	resource *rpc.Client
}

// newClient makes a client whose connections come from an address of this process's own.
func (o *subprocess) newClient(cfg client.Config, label string) (c *recordedClient, err error) {
	cfg.Endpoints, cfg.Label, cfg.Dialer = o.Endpoints, label, dialFrom(o.Address)
	cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	c = &recordedClient{subprocess: o, label: label, cfg: cfg, sessions: map[uint64]bool{}}
	c.Client, err = client.New(cfg)
	return c, err
}

// run works until nothing new is to begin.
func (t *worker) run() {
	for t.ending.Err() == nil {
		t.step()
		sleepContext(t.ending, time.Duration(t.Int64N(int64(thinkTimeMax))))
	}
}

// step is one random call, with what follows from it.
func (t *worker) step() {
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

func (t *worker) mutex() string { return fmt.Sprint("m", t.IntN(mutexes)) }

// randomRequest is what a thread asks for.
func (t *worker) randomRequest() (items []client.Item, opts []client.Option) {
	switch n := t.IntN(10); {
	case n < 5:
		items = append(items, client.ExclusiveItem(t.mutex()))
	case n < 7:
		items = append(items, client.SharedItem(t.mutex()))
	case n < 9:
		items = append(items, client.PermitsItem(fmt.Sprint("p", t.IntN(pools)), 1+t.Uint32N(2), permitsPerPool))
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

// acquire makes a random request, and records its outcome.
func (t *worker) acquire(bounded bool) (*client.Lock, *check.Hold) {
	items, opts := t.randomRequest()
	if t.IntN(2) == 0 {
		opts = append(opts, client.WithOwner(t.owner))
	}
	kind := check.OpLock
	if t.IntN(3) == 0 {
		kind = check.OpTryLock
	}
	ctx, cancel := t.ctx, context.CancelFunc(func() {})
	if bounded {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(t.Int64N(int64(waitMax))))
	}
	defer cancel()
	return t.lockFunc(ctx, kind, items, opts)
}

func (t *worker) lockFunc(ctx context.Context, kind check.OpKind, items []client.Item,
	opts []client.Option) (*client.Lock, *check.Hold) {
	lockFunc := t.LockAll
	if kind == check.OpTryLock {
		lockFunc = t.TryLockAll
	}
	var l *client.Lock
	var h *check.Hold
	_ = t.record.call(check.Op{Client: t.label, Kind: kind, Items: check.ItemsOf(items)},
		func(op *check.Op) (err error) {
			var queued time.Duration
			if kind == check.OpLock {
				opts = append(opts, client.OnPosition(func(client.Position) {
					queued = cmp.Or(queued, monotonicNow())
				}))
			}
			if l, err = lockFunc(ctx, items, opts...); err != nil {
				return err
			}
			op.Ref, op.Token, op.Queued = check.Ref{Session: l.Session(), Ticket: l.Ticket()}, uint64(l.Token()), queued
			t.recordSession(op.Session)
			h = &check.Hold{Client: t.label, Ref: op.Ref, Token: op.Token, Items: op.Items, From: monotonicNow()}
			t.record.put(check.Record{Hold: h})
			return nil
		})
	return l, h
}

// recordSession records a session when it is first seen.
func (c *recordedClient) recordSession(session uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.sessions[session] {
		c.sessions[session] = true
		c.record.put(check.Record{Session: &check.Session{
			Session: session, Client: c.label, TTL: cmp.Or(c.cfg.TTL, client.DefaultTTL),
			ReleaseOnDisconnect: c.cfg.ReleaseOnDisconnect != 0,
		}})
	}
}

// sharedHold is a hold of which two goroutines may see the end.
type sharedHold struct {
	*check.Hold
	mu sync.Mutex
}

// endHold records the end of a hold, once.
func (t *worker) endHold(h *sharedHold, end check.HoldEnd, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.To == 0 {
		h.To, h.End, h.Reason = monotonicNow(), end, reason
		t.record.put(check.Record{Hold: h.Hold})
	}
}

// hold keeps a grant for a while, works under it, and gives it back. depth is how many it holds already.
func (t *worker) hold(l *client.Lock, hold *check.Hold, depth int) {
	h := &sharedHold{Hold: hold}
	most := holdMax
	if t.IntN(100) == 0 {
		most = longHold
	}
	until := time.Now().Add(time.Duration(t.Int64N(int64(most))))
	limited := slices.ContainsFunc(h.Items, func(it check.Item) bool { return it.Mode == check.Permits })
	shared, poll := false, time.NewTimer(lossPollInterval)
	defer poll.Stop()
	reported := make(chan struct{})
	stop := context.AfterFunc(l.Context(), func() {
		defer close(reported)
		t.endHold(h, check.Lost, check.LossReason(l.Err()))
	})
	for first := true; first || time.Now().Before(until) && t.ending.Err() == nil; first = false {
		if l.Err() != nil {
			break
		}
		t.recordRenewal(l)
		t.write(h.Hold, shared)
		switch n := t.IntN(30); {
		case n < 2:
			t.check(h.Hold)
		case n == 2 && !limited && !shared:
			shared = t.downgrade(l, h)
		case n == 3 && depth == 0:
			// Without an owner on both sides a deadlock is not detected: hence bounded.
			if inner, under := t.acquire(true); inner != nil {
				t.hold(inner, under, depth+1)
			}
		}
		poll.Reset(min(time.Until(until), lossPollInterval))
		select {
		case <-l.Lost():
		case <-poll.C:
		}
	}
	t.unlock(l, h)
	if !stop() {
		<-reported
	}
}

// unlock ends a hold: by what it was lost for, or by its release.
func (t *worker) unlock(l *client.Lock, h *sharedHold) {
	if err := l.Err(); err != nil {
		t.endHold(h, check.Lost, check.LossReason(err))
	} else {
		t.endHold(h, check.Unlocked, "")
	}
	op := check.Op{Client: t.label, Kind: check.OpUnlock, Ref: h.Ref, Items: h.Items}
	_ = t.record.call(op, func(*check.Op) error { return l.Unlock(t.ctx) })
}

// write writes to what the held mutexes guard.
func (t *worker) write(h *check.Hold, shared bool) {
	for _, it := range h.Items {
		if it.Mode != check.Permits {
			// Without the resource there is no run any more.
			w := check.Write{Resource: it.Name, Client: t.label, Token: h.Token,
				Shared: shared || it.Mode == check.Shared}
			_ = t.resource.Call("Resource.Write", w, new(bool))
		}
	}
}

func (t *worker) downgrade(l *client.Lock, h *sharedHold) bool {
	if !slices.ContainsFunc(h.Items, func(it check.Item) bool { return it.Mode == check.Exclusive }) {
		return false
	}
	h.mu.Lock()
	h.Downgraded = monotonicNow()
	t.record.put(check.Record{Hold: h.Hold})
	h.mu.Unlock()
	op := check.Op{Client: t.label, Kind: check.OpDowngrade, Ref: h.Ref, Items: h.Items}
	_ = t.record.call(op, func(*check.Op) error { return l.Downgrade(t.ctx) })
	return true
}

func (t *worker) check(h *check.Hold) {
	it := h.Items[t.IntN(len(h.Items))]
	op := check.Op{Client: t.label, Kind: check.OpCheck, Ref: h.Ref, Items: []check.Item{it}, Token: h.Token}
	_ = t.record.call(op, func(op *check.Op) error {
		grant := client.Grant{Name: it.Name, Token: client.Token(h.Token), Session: h.Session, Ticket: h.Ticket}
		held, at, err := t.Check(t.ctx, grant)
		op.Held = held
		stamp(op, at)
		return err
	})
}

func stamp(op *check.Op, at client.Stamp) { op.Term, op.Index, op.Time = at.Term, at.Index, at.Time }

func (t *worker) now() (ok bool) {
	return t.record.call(check.Op{Client: t.label, Kind: check.OpNow}, func(op *check.Op) error {
		at, err := t.Now(t.ctx)
		stamp(op, at)
		return err
	}) == nil
}

// awaitAnswer asks until there is an answer: a call has its own limit, which a busy machine may exceed.
func (t *worker) awaitAnswer() {
	for !t.now() && sleepContext(t.ctx, 100*time.Millisecond) {
	}
}

// get looks at a lock.
func (t *worker) get(name string) (d *client.LockDetail) {
	op := check.Op{Client: t.label, Kind: check.OpGet, Items: []check.Item{{Name: name}}}
	_ = t.record.call(op, func(op *check.Op) (err error) {
		if d, err = t.Get(t.ctx, name, 0); err != nil {
			return err
		}
		stamp(op, d.Stamp)
		for _, held := range d.Held {
			op.Holders = append(op.Holders, check.Ref{Session: held.Session, Ticket: held.Ticket})
		}
		return nil
	})
	return d
}

// recordRenewal derives from a handle's deadline when the latest confirmed renewal was sent. A pause
// between the two readings makes it earlier, which only asks for less.
func (t *worker) recordRenewal(l *client.Lock) {
	at := monotonicNow()
	remaining := time.Until(l.Deadline())
	if remaining <= 0 || l.Err() != nil {
		return
	}
	margin := max(t.cfg.TTL/20, 200*time.Millisecond)
	age := t.cfg.TTL - margin - remaining + 5*time.Millisecond
	t.record.put(check.Record{Renewal: &check.Renewal{Session: l.Session(), Sent: at - age, Confirmed: at}})
}

// finalCall is what a client does last: it must succeed.
func (t *worker) finalCall() {
	last := []client.Item{client.ExclusiveItem("last of " + t.label)}
	if l, h := t.lockFunc(t.ctx, check.OpLock, last, nil); l != nil {
		t.write(h, false)
		t.check(h)
		t.unlock(l, &sharedHold{Hold: h})
	}
	t.awaitAnswer()
}
