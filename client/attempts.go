package client

import (
	"context"
	"math/rand/v2"
	"time"
)

// attempts are the attempts at one thing, each at a node of its own. The first that succeeds
// counts. An attempt without an answer continues while another node is asked, since a node whose
// disk is slow may answer in time. One goroutine calls the methods.
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

// byOther is the error of an attempt at another node than the one that is asked now: it was asked
// before.
type byOther struct {
	error
	node *node
}

// ask begins an attempt at a node, unless one is pending there, and waits for any to end. If none
// does in time, the error is errNoAnswer.
func (a *attempts[T]) ask(ctx context.Context, one *node, patience time.Duration) attemptEnd[T] {
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
	return a.wait(ctx, one, patience)
}

func (a *attempts[T]) wait(ctx context.Context, one *node, patience time.Duration) attemptEnd[T] {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case ended := <-a.ended:
		delete(a.pending, ended.node)
		return ended
	case <-ctx.Done():
		return attemptEnd[T]{node: one, err: errNoAnswer}
	}
}

// end cancels what is pending, and returns how it ended.
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

// result is the error for askInTurn, which has just asked this node: another one may have answered.
func (e attemptEnd[T]) result(asked *node) error {
	if e.node != asked {
		return byOther{e.err, e.node}
	}
	return e.err
}

// pause is a wait between attempts that grows, with jitter: a thousand clients that lost one leader
// must not come to the next in one moment.
type pause struct{ next time.Duration }

const (
	pauseMin = 20 * time.Millisecond
	pauseMax = 500 * time.Millisecond
)

// wait returns false if the context ended first.
func (p *pause) wait(ctx context.Context) bool {
	p.next = min(max(2*p.next, pauseMin), pauseMax)
	over, cancel := context.WithTimeout(ctx, p.next/2+rand.N(p.next))
	defer cancel()
	<-over.Done()
	return ctx.Err() == nil
}
