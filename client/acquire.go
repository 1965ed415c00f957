package client

import (
	"context"
	"errors"
	"time"
)

// Lock waits in line for a lock, for as long as ctx allows, also while no node can be reached (which is
// logged once), unless this client has never reached one and every endpoint refuses it: then it fails at once with
// ErrUnavailable, as every call does. If ctx ends first, the error wraps ctx.Err(), and ErrNotAcquired, or, if the cluster
// could not be reached, ErrUnavailable with the latest error of every node.
//
// A client holds and waits for up to 4096 locks at a time; more is an ErrLimit.
func (c *Client) Lock(ctx context.Context, name string, opts ...Option) (*Lock, error) {
	return c.LockAll(ctx, []Item{ExclusiveItem(name)}, opts...)
}

// TryLock takes a lock only if that is possible at once. If not, the error is a *NotAcquiredError, which
// names the holders.
func (c *Client) TryLock(ctx context.Context, name string, opts ...Option) (*Lock, error) {
	return c.TryLockAll(ctx, []Item{ExclusiveItem(name)}, opts...)
}

// LockAll waits in line for several locks, which are granted together. While it waits, it blocks later requests for each
// of them.
func (c *Client) LockAll(ctx context.Context, items []Item, opts ...Option) (*Lock, error) {
	return c.acquire(ctx, newRequest(items, opts))
}

// TryLockAll takes several locks, if all are available at once.
func (c *Client) TryLockAll(ctx context.Context, items []Item, opts ...Option) (*Lock, error) {
	r := newRequest(items, opts)
	r.try = true
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.RequestTimeout, errRequestTimeout)
	defer cancel()
	return c.acquire(ctx, r)
}

// acquire requests a lock until there is a final answer. It repeats the request only when the previous one ended without
// a lock: the session ended, or the grant did before it could be handed over. The latter may happen each time, where the
// cluster is too far away for a maximum hold, so then there is a pause.
func (c *Client) acquire(ctx context.Context, r *request) (*Lock, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	var between pause
	for {
		if ctx.Err() != nil {
			return nil, &NotAcquiredError{Names: names(r.items), cause: contextEnd(ctx)}
		}
		s, err := c.living()
		if err != nil {
			return nil, err
		}
		lock, err := s.ask(r).wait(ctx, r)
		switch {
		case errors.Is(err, errTooLate):
			if between == (pause{}) {
				c.log.Warn("zamok: the maximum hold passed before the lock could be returned; acquiring again", "locks", names(r.items), "max hold", r.maxHold)
			}
			between.wait(ctx)
		case !errors.Is(err, errRetryInNewSession):
			return lock, err
		}
	}
}

// errRetryInNewSession and errTooLate: an acquisition ended without a lock; with the latter it was granted.
var (
	errRetryInNewSession = errors.New("ask again")
	errTooLate           = errors.New("ask again later")
)

// wait waits for the end of an acquisition. If its context ends first, it is cancelled: a wait while the session is attached
// ends at once; without a stream, or for a try, the outcome of what was sent is unknown.
func (t *ticket) wait(ctx context.Context, r *request) (lock *Lock, err error) {
	s := t.s
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		settled := t.await(ctx, func() bool {
			if t.state == ticketGranted { // reading the clocks costs more than the rest
				now := s.c.clock.Now()
				s.checkDeadlines(now)
				lock = t.handOver(now)
			}
			return lock != nil || t.failure != nil || t.position != nil && ctx.Err() == nil
		})
		switch {
		case lock != nil:
			return lock, nil
		case t.failure != nil:
			return nil, t.failure
		case !settled:
			t.giveUp(nil)
			switch {
			case s.link != nil && !r.try:
				return nil, &NotAcquiredError{Names: names(r.items), cause: contextEnd(ctx)}
			case t.state == ticketEnded:
				return nil, s.c.nodes.unavailable(NotDone, contextEnd(ctx))
			}
			return nil, t.unconfirmed(s.c.nodes.unavailable(Unknown, contextEnd(ctx)))
		}
		position := *t.position
		t.position = nil
		func() {
			s.mu.Unlock()
			defer s.mu.Lock() // also if it panics
			r.onPosition(position)
		}()
	}
}

// await waits until the ticket is settled, or ctx ends first. Its caller has the mutex, which is free meanwhile.
func (t *ticket) await(ctx context.Context, settled func() bool) bool {
	for !settled() {
		changed, ended := t.changes(), false
		t.s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			ended = true
		}
		t.s.mu.Lock()
		if ended {
			return false
		}
	}
	return true
}

// Do runs f under a lock. The context of f ends when the lock is lost, with the loss as its cause. The error
// joins that of f and that of the release: ErrLost is in it if the lock was lost before f returned.
func (c *Client) Do(ctx context.Context, name string, f func(context.Context, *Lock) error, opts ...Option) (err error) {
	lock, err := c.Lock(ctx, name, opts...)
	if err != nil {
		return err
	}
	inside, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(lock.Context(), func() { cancel(lock.Err()) })
	defer func() { // also if f panics: the program may recover, and others wait
		stop()
		cancel(nil)
		err = errors.Join(err, lock.Unlock(ctx))
	}()
	return f(inside, lock)
}

// limited bounds a wait for the cluster by the request timeout, and works with a context that has ended: a release must
// not be prevented by the end of the work that it protected.
func (c *Client) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	timeout := c.cfg.RequestTimeout
	if ctx.Err() != nil {
		ctx, timeout = context.WithoutCancel(ctx), min(timeout, afterwards)
	}
	return context.WithTimeoutCause(ctx, timeout, errRequestTimeout)
}

// afterwards is how long Unlock waits for the cluster when its context has ended already.
const afterwards = time.Second
