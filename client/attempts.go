package client

import (
	"context"
	"math/rand/v2"
	"time"
)

// attempts are concurrent attempts to do one thing, each at a node of its own. The first that
// succeeds counts. An attempt without an answer continues while another node is tried, since a node
// whose disk is slow may answer in time. One goroutine calls the methods.
type attempts[T any] struct {
	// begin is called in a goroutine of its own.
	begin   func(context.Context, context.CancelCauseFunc, *node) (T, error)
	pending map[*node]context.CancelCauseFunc
	ended   chan attemptEnd[T]
}

// attemptEnd is how an attempt at a node ended.
type attemptEnd[T any] struct {
	node  *node
	value T
	err   error
}

// otherNodeError is the error of an attempt at another node than the one that is tried now. That
// attempt began earlier in the round.
type otherNodeError struct {
	error
	node *node
}

// try begins an attempt at a node, unless one is pending there, and waits until any attempt ends.
// If none ends before the timeout, the error is errNoAnswer.
func (a *attempts[T]) try(ctx context.Context, one *node, timeout time.Duration) attemptEnd[T] {
	if a.pending == nil {
		a.pending, a.ended = make(map[*node]context.CancelCauseFunc), make(chan attemptEnd[T])
	}
	if a.pending[one] == nil {
		ctx, cancel := context.WithCancelCause(ctx)
		a.pending[one] = cancel
		go func() { // ends when its end is received: by wait or by end
			value, err := a.begin(ctx, cancel, one)
			a.ended <- attemptEnd[T]{one, value, err}
		}()
	}
	return a.wait(ctx, one, timeout)
}

func (a *attempts[T]) wait(ctx context.Context, one *node, timeout time.Duration) attemptEnd[T] {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	select {
	case ended := <-a.ended:
		delete(a.pending, ended.node)
		return ended
	case <-ctx.Done():
		return attemptEnd[T]{node: one, err: errNoAnswer}
	}
}

// end cancels the pending attempts, and returns how each ended.
func (a *attempts[T]) end() (all []attemptEnd[T]) {
	for _, cancel := range a.pending {
		cancel(errNoAnswer)
	}
	for range a.pending {
		all = append(all, <-a.ended)
	}
	clear(a.pending)
	return all
}

// result is the error for tryInTurn, which has just tried this node: the attempt at another node
// may have ended.
func (e attemptEnd[T]) result(tried *node) error {
	if e.node != tried {
		return otherNodeError{e.err, e.node}
	}
	return e.err
}

// backoff waits between attempts, longer each time, with jitter: a thousand clients that lost one
// leader must not reach the next at the same moment.
type backoff struct{ next time.Duration }

const (
	backoffMin = 20 * time.Millisecond
	backoffMax = 500 * time.Millisecond
)

// wait returns false if the context ended first.
func (b *backoff) wait(ctx context.Context) bool {
	b.next = min(max(2*b.next, backoffMin), backoffMax)
	return sleep(ctx, b.next/2+rand.N(b.next))
}

// sleep returns false if the context ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	over, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-over.Done()
	return ctx.Err() == nil
}
