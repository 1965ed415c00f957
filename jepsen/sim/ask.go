package sim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/session"
)

// errDied is what a client sees of a process that ended: an end of its connection, no answer.
var errDied = fmt.Errorf("the process ended: %w", raftnode.ErrUnknown)

// answerMax is how long a test waits for one answer: far longer than a healthy cluster takes.
const answerMax = 5 * time.Second

type answered struct {
	answer raftnode.Answer
	err    error
}

// hand gives a process something to do and waits for its answer, for its end, or for ctx.
func (p *process) hand(ctx context.Context, hand func(raftnode.Done)) (raftnode.Answer, error) {
	ch := make(chan answered, 1)
	hand(func(a raftnode.Answer, err error) { ch <- answered{a, err} })
	select {
	case <-p.dead:
		return raftnode.Answer{}, errDied
	default:
	}
	select {
	case a := <-ch:
		return a.answer, a.err
	case <-p.dead:
		return raftnode.Answer{}, errDied
	case <-ctx.Done():
		return raftnode.Answer{}, fmt.Errorf("%w (%w)", raftnode.ErrUnknown, context.Cause(ctx))
	}
}

var errDown = errors.New("not done: nothing runs there")

// Propose lets the process here propose a command.
func (n *Node) Propose(ctx context.Context, c fsm.Command) (raftnode.Answer, error) {
	p := n.running()
	if p == nil {
		return raftnode.Answer{}, errDown
	}
	return p.hand(ctx, func(done raftnode.Done) { p.node.Submit(c, done) })
}

// Renew lets the process here propose a renewal.
func (n *Node) Renew(ctx context.Context, id session.ID) (raftnode.Answer, error) {
	p := n.running()
	if p == nil {
		return raftnode.Answer{}, errDown
	}
	return p.hand(ctx, func(done raftnode.Done) { p.node.Renew(id, done) })
}

// Fence asks the process here for proof that it leads.
func (n *Node) Fence(ctx context.Context) (raftnode.Answer, error) {
	p := n.running()
	if p == nil {
		return raftnode.Answer{}, errDown
	}
	return p.hand(ctx, func(done raftnode.Done) {
		go func() {
			stamp, t, err := p.node.Fence(ctx)
			done(raftnode.Answer{Stamp: stamp, Time: t}, err)
		}()
	})
}

// Must lets a node propose a command that is answered OK, or the test ends.
func (n *Node) Must(c fsm.Command) raftnode.Answer {
	n.sim.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), answerMax)
	defer cancel()
	a, err := n.Propose(ctx, c)
	if err != nil || a.Result.Code != fsm.OK {
		n.sim.Fatalf("%s: %T: %v, code %d", n.ID, c, err, a.Result.Code)
	}
	return a
}

// Open opens a session.
func (n *Node) Open(secret string, ttl time.Duration) session.ID {
	n.sim.Helper()
	return n.Must(&fsm.OpenSession{Secret: hashOf(secret), TTL: clock.Of(ttl)}).Result.Session
}

// Lock acquires a lock for a session, or begins to wait for it.
func (n *Node) Lock(id session.ID, ticket uint64, name string) raftnode.Answer {
	n.sim.Helper()
	return n.Must(exclusive(id, ticket, name))
}

// exclusive waits for a lock for as long as it takes.
func exclusive(id session.ID, ticket uint64, name string) *fsm.Acquire {
	return &fsm.Acquire{
		Session: id, Ticket: ticket, WaitFor: fsm.Forever,
		Items: []fsm.Item{{Name: name, Mode: fsm.Exclusive}},
	}
}

// hashOf is a hash that a reader of a failure recognises.
func hashOf(secret string) (h session.Hash) {
	copy(h[:], secret)
	return h
}
