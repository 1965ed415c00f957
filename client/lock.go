package client

import (
	"context"
	"errors"
	"time"

	"zamok/clock"
)

// Lock is the handle of a granted acquisition. All methods may be called at the same time. A handle
// that is dropped without an Unlock stays held.
type Lock struct {
	t *ticket

	ctx       context.Context // ends when the lock is lost; nil until Context is called
	cancel    context.CancelCauseFunc
	contended chan int // buffers the latest number
}

// Name is the lock's name; of several locks it is the first name.
func (l *Lock) Name() string { return l.t.items[0].name }

// Names are the names of all locks of the handle.
func (l *Lock) Names() []string { return names(l.t.items) }

// Token is the number of the grant, for storage that checks it.
func (l *Lock) Token() Token { return Token(l.t.token) }

// Ticket and Session identify the grant in Watch, Get, Check and admin.ForceRelease.
func (l *Lock) Ticket() uint64 { return l.t.number }

// Session is the id of the session that holds the lock.
func (l *Lock) Session() uint64 {
	l.t.s.mu.Lock()
	defer l.t.s.mu.Unlock()
	return l.t.s.id
}

// checkDeadline locks the mutex and checks the deadlines.
func (l *Lock) checkDeadline() *session {
	s := l.t.s
	s.mu.Lock()
	s.checkDeadlines(s.c.clock.Now())
	return s
}

// Err is nil while the lock is held. Afterwards it is ErrNotHeld after an Unlock, and otherwise
// wraps ErrLost.
func (l *Lock) Err() error {
	s := l.checkDeadline()
	defer s.mu.Unlock()
	return l.err()
}

func (l *Lock) err() error {
	switch {
	case l.t.failure != nil:
		return l.t.failure
	case l.t.unlocked:
		return &Error{Kind: ErrNotHeld}
	}
	return nil
}

// Lost is closed when the lock is lost, before another client can be granted it. Unlock does not
// close it.
func (l *Lock) Lost() <-chan struct{} { return l.Context().Done() }

// Context ends when the lock is lost; context.Cause then wraps ErrLost. Unlock does not end it, so
// a callback for loss is context.AfterFunc(lock.Context(), f).
func (l *Lock) Context() context.Context {
	s := l.checkDeadline()
	defer s.mu.Unlock()
	if l.ctx == nil {
		l.ctx, l.cancel = context.WithCancelCause(context.Background())
		if l.t.failure != nil {
			l.cancel(l.t.failure)
		}
	}
	return l.ctx
}

// Deadline is the time at which the lock is lost if the cluster answers no more. It moves with each
// renewal. It is for people and for timeouts: use Err to know whether the lock is held.
func (l *Lock) Deadline() time.Time {
	s := l.checkDeadline()
	defer s.mu.Unlock()
	now := s.c.clock.Now()
	var left clock.Span
	if l.err() == nil {
		until, _ := s.lease.Until()
		left = now.Until(until)
		if l.t.holdUntil != 0 {
			left = min(left, now.Until(l.t.holdEnd))
		}
	}
	return time.Now().Add(left.Duration())
}

// Contended delivers the number of requests that wait for the handle's locks, when it changes, at
// most once a second. The channel keeps the latest number.
func (l *Lock) Contended() <-chan int { return l.contended }

// Downgrade makes the exclusive locks of the handle shared, which admits the readers that wait
// behind them. The token stays, but from now on storage compares it and does not store it. If the
// lock is lost meanwhile, the outcome is Unknown.
func (l *Lock) Downgrade(ctx context.Context) error {
	t := l.t
	s := l.checkDeadline()
	defer s.mu.Unlock()
	if err := l.err(); err != nil {
		return withOutcome(err, NotDone)
	}
	if t.downgrade == downgradeNone {
		t.downgrade, t.downgradeErr, t.downgrades = downgradeRequested, nil, 0
		s.queueOut(t)
	}
	ctx, cancel := s.c.withRequestTimeout(ctx)
	defer cancel()
	t.await(ctx, func() bool { return t.downgrade != downgradeRequested || l.err() != nil })
	s.checkDeadlines(s.c.clock.Now())
	err := l.err()
	switch {
	case t.downgradeErr != nil:
		return t.downgradeErr
	case err != nil:
		return withOutcome(err, [...]Outcome{downgradeNone: NotDone, downgradeRequested: Unknown,
			downgradeDone: Done}[t.downgrade])
	case t.downgrade == downgradeDone:
		return nil
	}
	return s.c.nodes.unavailable(Unknown, contextEnd(ctx))
}

// withOutcome returns err with another outcome.
func withOutcome(err error, outcome Outcome) error {
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	changed := *e
	changed.Outcome = outcome
	return &changed
}

// Unlock releases the locks of the handle, and waits for the cluster's confirmation. Whatever it
// returns, the lock is not held any more once it was called. A context that has ended does not
// prevent the release.
//
// Nil means that the cluster confirmed the end of the grant: by this release, with the session, or
// before. An *UnconfirmedError means that it did not. If that is an ErrUnavailable, the release
// continues in the background for as long as the session lives. ErrLost means that the lock was
// lost before, so others may have held it during the work; this is an *UnconfirmedError, too,
// unless the cluster ended the grant. A second Unlock returns ErrNotHeld.
func (l *Lock) Unlock(ctx context.Context) error {
	t := l.t
	s := l.checkDeadline()
	defer s.mu.Unlock()
	unlocked := t.unlocked
	t.unlocked = true
	switch {
	case unlocked:
		return &Error{Kind: ErrNotHeld}
	case t.failure != nil && t.state == ticketEnded:
		return withOutcome(t.failure, Done)
	case t.failure != nil:
		return t.unconfirmed(t.failure)
	}
	t.giveUp(nil)
	ctx, cancel := s.c.withRequestTimeout(ctx)
	defer cancel()
	t.await(ctx, func() bool { return t.state.final() })
	switch t.state {
	case ticketEnded:
		return nil
	case ticketUnconfirmed: // its outcome stays unknown
		return t.unconfirmed(&Error{Kind: ErrUnavailable, Outcome: Unknown,
			cause: context.Cause(s.ctx)})
	}
	return t.unconfirmed(s.c.nodes.unavailable(Unknown, contextEnd(ctx)))
}
