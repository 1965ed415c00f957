package client

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
)

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
