package redsync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"zamok/client"
)

var (
	// ErrFailed: the context ended before the lock was acquired.
	ErrFailed = errors.New("redsync: failed to acquire lock")
	// ErrExtendFailed: the lock is not held any more.
	ErrExtendFailed = errors.New("redsync: failed to extend lock")
	// ErrLockAlreadyExpired: the lock was not held any more when it was to be unlocked.
	ErrLockAlreadyExpired = errors.New("redsync: failed to unlock, lock was already expired")
)

// ErrTaken: the lock is not this mutex's, because another holds it, or because it was lost or
// unlocked. It wraps the client's error, which names the holders.
type ErrTaken struct{ err error }

func (e *ErrTaken) Error() string { return e.err.Error() }
func (e *ErrTaken) Unwrap() error { return e.err }

var (
	errNeverLocked = errors.New("the mutex was never locked")
	errEnded       = errors.New("the cluster has ended the grant")
)

// Mutex is a lock, and its last acquisition. Methods may be called at the same time, but, as with
// redsync, goroutines that exclude each other need a Mutex each: Unlock releases what the Mutex
// acquired last.
type Mutex struct {
	c       *client.Client
	name    string
	tries   int
	delay   time.Duration
	options []client.Option

	lock atomic.Pointer[client.Lock] // the last one acquired
}

// Name is the lock's name.
func (m *Mutex) Name() string { return m.name }

// Handle is the handle of the last acquisition, with its token and a context that ends when it is
// lost; nil before the first.
func (m *Mutex) Handle() *client.Lock { return m.lock.Load() }

// Value is the token of the last acquisition in decimal, or empty before the first.
func (m *Mutex) Value() string {
	if lock := m.Handle(); lock != nil {
		return strconv.FormatUint(uint64(lock.Token()), 10)
	}
	return ""
}

// Until is until when the lock is held if no renewal arrives any more, or zero before the first
// acquisition.
func (m *Mutex) Until() time.Time {
	if lock := m.Handle(); lock != nil {
		return lock.Deadline()
	}
	return time.Time{}
}

// TryLock is TryLockContext without a context.
func (m *Mutex) TryLock() error { return m.TryLockContext(context.Background()) }

// TryLockContext acquires the lock if it is free.
func (m *Mutex) TryLockContext(ctx context.Context) error { return m.acquire(ctx, 0) }

// Lock is LockContext without a context.
func (m *Mutex) Lock() error { return m.LockContext(context.Background()) }

// LockContext acquires the lock, for which it waits as WithTries says.
func (m *Mutex) LockContext(ctx context.Context) error { return m.acquire(ctx, m.waitLimit()) }

func (m *Mutex) acquire(ctx context.Context, wait time.Duration) error {
	lock, err := m.c.Lock(ctx, m.name, append(slices.Clip(m.options), client.WithWait(wait))...)
	switch {
	case err == nil:
		m.lock.Store(lock)
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ErrFailed, err)
	case errors.Is(err, client.ErrNotAcquired):
		return &ErrTaken{err}
	}
	return err
}

// Unlock is UnlockContext without a context.
func (m *Mutex) Unlock() (bool, error) { return m.UnlockContext(context.Background()) }

// UnlockContext releases the lock. False with ErrLockAlreadyExpired, which wraps an ErrTaken: it
// was not held any more, so what was done under it may not have been done alone. False with another
// error: the cluster did not confirm the release, which continues in the background.
func (m *Mutex) UnlockContext(ctx context.Context) (bool, error) {
	lock := m.Handle()
	if lock == nil {
		return false, fmt.Errorf("%w: %w", ErrLockAlreadyExpired, &ErrTaken{errNeverLocked})
	}
	err := lock.Unlock(ctx)
	if errors.Is(err, client.ErrLost) || errors.Is(err, client.ErrNotHeld) {
		err = fmt.Errorf("%w: %w", ErrLockAlreadyExpired, &ErrTaken{err})
	}
	return err == nil, err
}

// Extend is ExtendContext without a context.
func (m *Mutex) Extend() (bool, error) { return m.ExtendContext(context.Background()) }

// ExtendContext checks with the cluster whether the lock is held, which needs no call to stay so.
// False with ErrExtendFailed, which wraps an ErrTaken: it is not. False with another error: no node
// answered in time, and Until is how long it is held without.
func (m *Mutex) ExtendContext(ctx context.Context) (bool, error) {
	held, err := m.ValidContext(ctx)
	if errors.As(err, new(*ErrTaken)) {
		err = fmt.Errorf("%w: %w", ErrExtendFailed, err)
	}
	return held, err
}

// Valid is ValidContext without a context.
//
// Deprecated: as in redsync. Use Until, or Handle.
func (m *Mutex) Valid() (bool, error) { return m.ValidContext(context.Background()) }

// ValidContext checks with the cluster whether the lock is held. False with an ErrTaken: it is not.
//
// Deprecated: as in redsync. Use Until, or Handle.
func (m *Mutex) ValidContext(ctx context.Context) (bool, error) {
	lock := m.Handle()
	if lock == nil {
		return false, &ErrTaken{errNeverLocked}
	}
	if err := lock.Err(); err != nil {
		return false, &ErrTaken{err}
	}
	held, _, err := m.c.Check(ctx, lock.Grant())
	if err == nil && !held {
		err = &ErrTaken{cmp.Or(lock.Err(), errEnded)}
	}
	return err == nil, err
}
