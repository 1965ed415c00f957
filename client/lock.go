package client

import (
	"context"
	"errors"
	"time"

	"zamok/clock"
)

// Token is the number of a grant. Storage that refuses a token lower than the highest that it has seen is safe from a
// process that lost an exclusive lock without noticing: see package fence.
type Token uint64

// Lock is one acquisition that was granted: the handle of what is held. All methods may be called at the
// same time. Forgetting a handle does not release it.
type Lock struct {
	t *ticket

	ctx       context.Context // ends when the lock is lost; nil until Context is called
	cancel    context.CancelCauseFunc
	contended chan int // holds the latest number
}

// Name is the lock's name; of several the first.
func (l *Lock) Name() string { return l.t.items[0].name }

// Names are the names of all locks that the handle holds.
func (l *Lock) Names() []string { return names(l.t.items) }

// Token is the number of the grant, for storage that checks it.
func (l *Lock) Token() Token { return Token(l.t.token) }

// Ticket and Session name the grant as others see it: in Watch, Get, ForceRelease and Check.
func (l *Lock) Ticket() uint64 { return l.t.number }

// Session is the id of the session that holds it.
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

// Err is nil while the lock is held. Then it wraps ErrLost, or is ErrNotHeld after an Unlock.
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

// Lost is closed when the lock is lost, before anyone else can be granted it. Unlock does not close it.
func (l *Lock) Lost() <-chan struct{} { return l.Context().Done() }

// Context ends when the lock is lost; context.Cause then wraps ErrLost. Unlock does not end it, so a
// callback for loss is context.AfterFunc(lock.Context(), f).
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

// Deadline is when the lock is lost if the cluster does not answer any more. It moves with each
// renewal. It is for people and for timeouts: whether the lock is held is what Err says.
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

// Contended delivers how many requests wait for what is held, when that changes, at most once a second. The channel keeps
// the latest number.
func (l *Lock) Contended() <-chan int { return l.contended }

// Downgrade makes the exclusive locks of the handle shared, which admits the readers that wait behind them. The token
// stays; from now on storage compares it and does not store it. If the lock is lost meanwhile, the
// outcome is Unknown.
func (l *Lock) Downgrade(ctx context.Context) error {
	t := l.t
	s := l.checkDeadline()
	defer s.mu.Unlock()
	if err := l.err(); err != nil {
		return withOutcome(err, NotDone)
	}
	if t.downgrade == notAsked {
		t.downgrade, t.refusal, t.downgrades = asked, nil, 0
		s.queueOut(t)
	}
	ctx, cancel := s.c.limited(ctx)
	defer cancel()
	t.await(ctx, func() bool { return t.downgrade != asked || l.err() != nil })
	s.checkDeadlines(s.c.clock.Now())
	err := l.err()
	switch {
	case t.refusal != nil:
		return t.refusal
	case err != nil:
		return withOutcome(err, [...]Outcome{notAsked: NotDone, asked: Unknown, downgraded: Done}[t.downgrade])
	case t.downgrade == downgraded:
		return nil
	}
	return s.c.nodes.unavailable(Unknown, contextEnd(ctx))
}

// withOutcome is an error as that of a call that took effect or not.
func withOutcome(err error, outcome Outcome) error {
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	changed := *e
	changed.Outcome = outcome
	return &changed
}

// Unlock releases what the handle holds, and waits for the cluster's confirmation. From its call on the lock is not held,
// whatever it returns.
//
// Nil: the cluster confirmed that the grant has ended, by this release, with the session, or before. An
// *UnconfirmedError: it did not; if it is an ErrUnavailable, the release continues in the background for as long as the
// session lives. A lock that was lost before gives ErrLost: what was
// done under it may not have been done alone. If the cluster did not end it, that is an *UnconfirmedError, too. A
// context that has ended does not prevent the release. The second Unlock gives ErrNotHeld.
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
	ctx, cancel := s.c.limited(ctx)
	defer cancel()
	t.await(ctx, func() bool { return t.state.final() })
	switch t.state {
	case ticketEnded:
		return nil
	case ticketUnconfirmed: // its outcome stays unknown
		return t.unconfirmed(&Error{Kind: ErrUnavailable, Outcome: Unknown, cause: context.Cause(s.ctx)})
	}
	return t.unconfirmed(s.c.nodes.unavailable(Unknown, contextEnd(ctx)))
}
