package client

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync/atomic"
)

// Election is one epoch and many candidates: the holder of its lock is elected.
type Election struct {
	c    *Client
	name string
}

// Election names an election. It does nothing yet.
func (c *Client) Election(name string) *Election { return &Election{c: c, name: name} }

// Leader is who is elected. Value is what it campaigned with. Its token rises from leader to leader.
type Leader struct {
	Value           []byte
	Token           Token
	Session, Ticket uint64
}

// Campaign waits until this candidate is elected. It stays so until the lock is lost or unlocked.
func (e *Election) Campaign(ctx context.Context, value []byte, opts ...Option) (*Lock, error) {
	return e.c.Lock(ctx, e.name, append(opts, WithMetadata(value))...)
}

// Leader asks who is elected; ok is false while there is no leader.
func (e *Election) Leader(ctx context.Context) (leader Leader, ok bool, err error) {
	leader, _, err = e.leader(ctx)
	return leader, leader.Token != 0, err
}

func (e *Election) leader(ctx context.Context) (Leader, Stamp, error) {
	info, err := e.c.Get(ctx, e.name, 1)
	if err != nil {
		return Leader{}, Stamp{}, err
	}
	for _, t := range info.Held {
		return Leader{Value: t.Metadata, Token: t.Token, Session: t.Session, Ticket: t.Ticket}, info.Stamp, nil
	}
	return Leader{}, info.Stamp, nil
}

// Observe reports the elected leader, now and whenever that changes; a Leader without a token: there is none. A leader
// that came and went between two reports may be left out. It ends as Watch does.
func (e *Election) Observe(ctx context.Context) iter.Seq2[Leader, error] {
	return func(yield func(Leader, error) bool) {
		last, at := Leader{}, Stamp{}
		look := func(first bool) (on bool) { // reports the leader, if it is another one than before
			now, stamp, err := e.leader(ctx)
			changed := first || err != nil || now.Token != last.Token || now.Session != last.Session
			last, at = now, stamp
			return (!changed || yield(now, err)) && err == nil
		}
		for first := true; look(first); first = false {
			for batch, err := range e.c.Watch(ctx, e.name, at.Index) {
				switch {
				case errors.Is(err, ErrCompacted): // ends the watch: look again, and watch from there
				case err != nil:
					yield(Leader{}, err)
					return
				case len(batch.Events) > 0 && !look(false):
					return
				}
			}
		}
	}
}

// Locker is a lock as a sync.Locker, for code that takes one. It can't tell when the lock is lost, and code
// that takes it will not ask: where that matters use Client.Lock, or look at Held.
type Locker struct {
	c       *Client
	ctx     context.Context
	name    string
	options []Option

	held atomic.Pointer[Lock]
}

// Locker makes a sync.Locker of a lock. Its Lock waits for as long as it takes, whatever the network does.
func (c *Client) Locker(ctx context.Context, name string, opts ...Option) *Locker {
	return &Locker{c: c, ctx: ctx, name: name, options: opts}
}

// Lock waits until the lock is held. A sync.Locker can't say that it failed, and to return without the lock
// would be worse: so Lock panics, as sync.Mutex does on misuse, when the lock can never be had: the context
// given to Locker ended, the client was closed, or the cluster refuses for good (ErrInvalid, ErrDenied, …).
// No failure of a network or a node is among these, nor a limit, such as a disk that is nearly full, nor an owner
// that waits for another lock, nor an operator who took the lock away before it was handed over.
func (l *Locker) Lock() {
	var between pause
	for {
		lock, err := l.c.Lock(l.ctx, l.name, l.options...)
		if err == nil {
			l.held.Store(lock)
			return
		}
		if !isTransient(err) || !between.wait(l.ctx) {
			panic(err)
		}
	}
}

// isTransient reports whether a repetition may succeed.
func isTransient(err error) bool {
	return slices.ContainsFunc([]error{ErrUnavailable, ErrLimit, ErrInternal, ErrRevoked, ErrNotAcquired},
		func(kind error) bool { return errors.Is(err, kind) })
}

// Unlock releases the lock. What goes wrong is logged: the lock is then free at the end of the ttl, or was
// lost before. It panics if the lock is not locked.
func (l *Locker) Unlock() {
	lock := l.held.Swap(nil)
	if lock == nil {
		panic("zamok: Unlock of a Locker that is not locked")
	}
	if err := lock.Unlock(context.WithoutCancel(l.ctx)); err != nil {
		l.c.log.Warn("zamok: Locker", "lock", l.name, "error", err)
	}
}

// Held is the handle of the lock while it is locked, else nil.
func (l *Locker) Held() *Lock { return l.held.Load() }
