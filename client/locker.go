package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
)

// Locker is a lock as a sync.Locker, for code that takes one. Such code can't notice when the lock
// is lost. Where that matters use Client.Lock, or look at Held.
type Locker struct {
	c       *Client
	ctx     context.Context
	name    string
	options []Option

	held atomic.Pointer[Lock]
}

// Locker makes a sync.Locker. Its Lock waits for as long as it takes, whatever the network does.
func (c *Client) Locker(ctx context.Context, name string, opts ...Option) *Locker {
	return &Locker{c: c, ctx: ctx, name: name, options: opts}
}

// Lock waits until the lock is held. A sync.Locker can't return an error, and to return without the
// lock would be worse. So Lock panics, as sync.Mutex does on misuse, when the lock can never be
// acquired: the context of the Locker ended, the client was closed, or the error is permanent
// (ErrInvalid, ErrDenied, …).
//
// Everything else is retried: failures of the network and of nodes, limits, such as a nearly full
// disk, an owner that waits for another lock, and a forced release before the lock was returned.
func (l *Locker) Lock() {
	var retry backoff
	for {
		lock, err := l.c.Lock(l.ctx, l.name, l.options...)
		if err == nil {
			l.held.Store(lock)
			return
		}
		if !isTransient(err) || !retry.wait(l.ctx) {
			panic(fmt.Errorf("zamok: Lock of a Locker: %w", err))
		}
	}
}

// isTransient reports whether a repetition may succeed.
func isTransient(err error) bool {
	return slices.ContainsFunc(
		[]error{ErrUnavailable, ErrLimit, ErrInternal, ErrForceReleased, ErrNotAcquired},
		func(kind error) bool { return errors.Is(err, kind) })
}

// Unlock releases the lock. It logs an error: the lock is then free when the ttl has passed, or was
// lost before. It panics if the Locker is not locked.
func (l *Locker) Unlock() {
	lock := l.held.Swap(nil)
	if lock == nil {
		panic("zamok: Unlock of a Locker that is not locked")
	}
	if err := lock.Unlock(context.WithoutCancel(l.ctx)); err != nil {
		l.c.log.Warn("zamok: the release of a Locker failed", "lock", l.name, "error", err)
	}
}

// Held is the handle of the lock while it is locked, else nil.
func (l *Locker) Held() *Lock { return l.held.Load() }
