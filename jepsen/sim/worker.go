package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"zamok/client"
	"zamok/jepsen/check"
)

const (
	mutexes            = 4
	pools              = 2
	permitsPerPool     = 3
	electionName       = "epoch" // the lock that programs campaign for
	waitMax            = 3 * time.Second
	thinkTimeMax       = time.Second
	callTimeout        = 5 * time.Second // the default of Config.RequestTimeout
	lossPollInterval   = 100 * time.Millisecond
	workAfterLoss      = time.Second // so long a worker that ignores losses works on after one
	threadsPerProgram  = 3
	operatorFaultRatio = 4 // one step in so many of an operator ends what is held
)

// worker is one goroutine of a program, an owner of locks. It uses everything that package client offers, at random.
type worker struct {
	*program
	*rand.Rand
	load  *Load
	owner string
	ttl   time.Duration
	// ignoresLoss: it works on when it has lost what it holds. Its resources refuse that.
	ignoresLoss bool
}

// randomStep is one random call, with what follows from it.
func (t *worker) randomStep() {
	switch t.IntN(10) {
	case 0:
		t.now()
	case 1:
		t.get(t.mutex())
	default:
		if l, h := t.acquire(t.IntN(3) == 0); l != nil {
			t.hold(l, h, 0)
		}
	}
}

func (t *worker) mutex() string { return fmt.Sprint("m", t.IntN(mutexes)) }

// randomRequest is what a thread asks for.
func (t *worker) randomRequest() (items []client.Item, opts []client.Option) {
	switch n := t.IntN(10); {
	case n < 1:
		items = append(items, client.ExclusiveItem(electionName))
	case n < 4:
		items = append(items, client.ExclusiveItem(t.mutex()))
	case n < 6:
		items = append(items, client.SharedItem(t.mutex()))
	case n < 8:
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
	if t.IntN(4) == 0 {
		opts = append(opts, client.OnPosition(func(client.Position) {}), client.WithMetadata([]byte(t.owner)))
	}
	return items, opts
}

// acquire asks for something, and records the outcome.
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
	return t.lock(ctx, kind, items, opts)
}

func (t *worker) lock(ctx context.Context, kind check.OpKind, items []client.Item, opts []client.Option) (*client.Lock, *check.Hold) {
	lockFunc := t.LockAll
	switch {
	case kind == check.OpTryLock:
		lockFunc = t.TryLockAll
	case items[0].Name() == electionName:
		lockFunc = t.campaign
	}
	r := t.load.record
	op := r.recordCall(check.Op{Client: t.label, Kind: kind, Items: check.ItemsOf(items)})
	l, err := lockFunc(ctx, items, opts...)
	t.running() // it may be paused before it sees the answer
	var h *check.Hold
	if err == nil {
		ref := check.Ref{Session: l.Session(), Ticket: l.Ticket()}
		h = r.startHold(check.Hold{Client: t.label, Ref: ref, Token: uint64(l.Token()), Items: op.Items})
	}
	r.recordReturn(op, func(op *check.Op) {
		op.Outcome = check.OutcomeOf(err)
		if err != nil {
			op.Error = err.Error()
			return
		}
		op.Ref, op.Token = h.Ref, h.Token
	})
	return l, h
}

// campaign stands for election, which is to ask for a lock.
func (t *worker) campaign(ctx context.Context, items []client.Item, opts ...client.Option) (*client.Lock, error) {
	return t.Election(items[0].Name()).Campaign(ctx, []byte(t.owner), opts...)
}

// hold keeps a grant for a while, works under it, and gives it back. depth is how many it holds already.
func (t *worker) hold(l *client.Lock, h *check.Hold, depth int) {
	until := time.Now().Add(time.Duration(t.Int64N(int64(t.load.pace * 3 / 2))))
	shared := false
	limited := slices.ContainsFunc(h.Items, func(it check.Item) bool { return it.Mode == check.Permits })
	lost, poll := l.Lost(), time.NewTimer(lossPollInterval)
	defer poll.Stop()
	defer context.AfterFunc(l.Context(), func() { t.load.record.endHold(h, check.Lost, check.LossReason(l.Err())) })()
	for time.Now().Before(until) && t.ctx.Err() == nil {
		if l.Err() != nil && !t.ignoresLoss {
			break
		}
		t.recordRenewal(l, t.ttl)
		switch n := t.IntN(30); {
		case n < 2:
			t.check(h)
		case n == 2 && !limited && !shared:
			shared = t.downgrade(l, h)
		case n == 3 && depth == 0:
			// Without an owner on both sides this may be a deadlock that is not detected.
			if inner, held := t.acquire(true); inner != nil {
				t.hold(inner, held, depth+1)
			}
		}
		poll.Reset(lossPollInterval)
		select {
		case <-lost:
			if !t.ignoresLoss {
				continue
			}
			lost, until = nil, time.Now().Add(workAfterLoss)
		case <-poll.C:
		case <-t.ctx.Done():
		}
		// A program that is paused between the check and the write writes when another may hold the lock.
		t.running()
		t.write(h, shared)
	}
	t.unlock(l, h)
}

// unlock ends a hold: by what it was lost for, or by its release.
func (t *worker) unlock(l *client.Lock, h *check.Hold) {
	if t.ctx.Err() != nil {
		return // the process has ended: it does and sees nothing
	}
	r := t.load.record
	if err := l.Err(); err != nil {
		r.endHold(h, check.Lost, check.LossReason(err))
	} else {
		r.endHold(h, check.Unlocked, "")
	}
	op := r.recordCall(check.Op{Client: t.label, Kind: check.OpUnlock, Ref: h.Ref, Items: h.Items})
	err := l.Unlock(t.ctx)
	r.recordReturn(op, func(op *check.Op) {
		if op.Outcome = check.OutcomeOf(err); err != nil {
			op.Error = err.Error()
		}
	})
}

// write writes to what the held mutexes guard.
func (t *worker) write(h *check.Hold, shared bool) {
	for _, it := range h.Items {
		if it.Mode != check.Permits && t.ctx.Err() == nil {
			t.load.record.write(t.label, it.Name, h.Token, shared || it.Mode == check.Shared)
		}
	}
}

func (t *worker) downgrade(l *client.Lock, h *check.Hold) bool {
	if !slices.ContainsFunc(h.Items, func(it check.Item) bool { return it.Mode == check.Exclusive }) {
		return false
	}
	r := t.load.record
	r.recordDowngrade(h)
	op := r.recordCall(check.Op{Client: t.label, Kind: check.OpDowngrade, Ref: h.Ref, Items: h.Items})
	err := l.Downgrade(t.ctx)
	r.recordReturn(op, func(op *check.Op) {
		if op.Outcome = check.OutcomeOf(err); err != nil { // also if it was lost: perhaps after it was shared
			op.Outcome, op.Error = check.Unknown, err.Error()
		}
	})
	return true
}

func (t *worker) check(h *check.Hold) {
	r, it := t.load.record, h.Items[t.IntN(len(h.Items))]
	op := r.recordCall(check.Op{Client: t.label, Kind: check.OpCheck, Ref: h.Ref, Items: []check.Item{it}, Token: h.Token})
	held, at, err := t.Client.Check(t.ctx, client.Grant{
		Name: it.Name, Token: client.Token(h.Token), Session: h.Session, Ticket: h.Ticket,
	})
	r.recordReturn(op, func(op *check.Op) {
		op.Held = held
		finishRead(op, at, err)
	})
}

func (t *worker) now() {
	r := t.load.record
	op := r.recordCall(check.Op{Client: t.label, Kind: check.OpNow})
	at, err := t.Now(t.ctx)
	r.recordReturn(op, func(op *check.Op) { finishRead(op, at, err) })
}

// get looks at a lock.
func (t *worker) get(name string) *client.LockDetail {
	r := t.load.record
	op := r.recordCall(check.Op{Client: t.label, Kind: check.OpGet, Items: []check.Item{{Name: name}}})
	d, err := t.Get(t.ctx, name, 0)
	r.recordReturn(op, func(op *check.Op) {
		if err != nil {
			finishRead(op, client.Stamp{}, err)
			return
		}
		finishRead(op, d.Stamp, nil)
		for _, held := range d.Held {
			op.Holders = append(op.Holders, check.Ref{Session: held.Session, Ticket: held.Ticket})
		}
	})
	if err != nil {
		return nil
	}
	return d
}

// finishRead records the answer of a read.
func finishRead(op *check.Op, at client.Stamp, err error) {
	if err != nil {
		op.Outcome, op.Error = check.Unknown, err.Error()
		return
	}
	op.Outcome, op.Term, op.Index, op.Time = check.OK, at.Term, at.Index, at.Time
}
