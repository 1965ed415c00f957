package raftnode

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"zamok/clock"
	"zamok/fsm"
	"zamok/session"
)

// proposer turns requests into entries of raft's log, and answers them. A request goes
//
//	put → queue → epoch.propose → raft → state.ApplyBatch → proposals.applied → Done
//
// or, if raft fails it, from awaitFailures to Done.
type proposer struct {
	*base
	state     *state
	notLeader func() error // the error of a node that does not lead
	queue     *queue
	proposals proposals
	cut       atomic.Int64 // cluster time that stalls of this leader cut off, in ns
}

type identityKey struct{}

// From returns a context for commands of an identity. Without it, commands are this node's own.
func From(ctx context.Context, identity string) context.Context {
	return context.WithValue(ctx, identityKey{}, identity)
}

func (p *proposer) submit(ctx context.Context, c fsm.Command, done Done) {
	from, _ := ctx.Value(identityKey{}).(string)
	p.put(request{from: from, command: c, since: time.Now(), done: done})
}

func (p *proposer) renew(id session.ID, done Done) {
	p.put(request{renews: true, session: id, since: time.Now(), done: done})
}

func (p *proposer) propose(ctx context.Context, c fsm.Command) (Answer, error) {
	return Wait(ctx, func(done Done) { p.submit(ctx, c, done) })
}

func (p *proposer) readBarrier(ctx context.Context) (clock.Stamp, clock.Time, error) {
	a, err := p.propose(ctx, nil)
	return a.Stamp, a.Time, err
}

// Wait submits something and waits for the answer. If ctx ends first the outcome is unknown.
func Wait(ctx context.Context, submit func(Done)) (Answer, error) {
	var answer Answer
	var err error
	answered := make(chan struct{})
	submit(func(a Answer, failed error) {
		answer, err = a, failed
		close(answered)
	})
	select {
	case <-answered:
		return answer, err
	case <-ctx.Done():
		return Answer{}, fmt.Errorf("%w (%w)", ErrUnknown, context.Cause(ctx))
	}
}

// put adds a request to the queue, and answers the requests that the queue refuses.
func (p *proposer) put(r request) {
	refused, err := p.queue.put(r)
	if err == errNotLeading {
		err = p.notLeader()
	}
	for _, r := range refused {
		r.done(Answer{}, err)
	}
}

// leads reports whether an epoch is open here, so that commands are proposed.
func (p *proposer) leads() bool { return p.queue.open.Load() }
