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

// errProcessExited is what a client sees of a process that ended: an end of its connection, no answer.
var errProcessExited = fmt.Errorf("the process ended: %w", raftnode.ErrUnknown)

// answerTimeout is how long a test waits for one answer: far longer than a healthy cluster takes.
const answerTimeout = 5 * time.Second

type proposalResult struct {
	answer raftnode.Answer
	err    error
}

// propose gives a process something to do and waits for its answer, for its end, or for ctx.
func (p *process) propose(ctx context.Context, propose func(raftnode.Done)) (raftnode.Answer, error) {
	ch := make(chan proposalResult, 1)
	propose(func(a raftnode.Answer, err error) { ch <- proposalResult{a, err} })
	select {
	case <-p.stopping:
		return raftnode.Answer{}, errProcessExited
	default:
	}
	select {
	case a := <-ch:
		return a.answer, a.err
	case <-p.stopping:
		return raftnode.Answer{}, errProcessExited
	case <-ctx.Done():
		return raftnode.Answer{}, fmt.Errorf("%w (%w)", raftnode.ErrUnknown, context.Cause(ctx))
	}
}

var errNotRunning = errors.New("not done: nothing runs there")

// Propose lets the process here propose a command.
func (n *Node) Propose(ctx context.Context, c fsm.Command) (raftnode.Answer, error) {
	p := n.openProcess()
	if p == nil {
		return raftnode.Answer{}, errNotRunning
	}
	return p.propose(ctx, func(done raftnode.Done) { p.node.Submit(c, done) })
}

// Renew lets the process here propose a renewal.
func (n *Node) Renew(ctx context.Context, id session.ID) (raftnode.Answer, error) {
	p := n.openProcess()
	if p == nil {
		return raftnode.Answer{}, errNotRunning
	}
	return p.propose(ctx, func(done raftnode.Done) { p.node.Renew(id, done) })
}

// ReadBarrier asks the process here for proof that it leads.
func (n *Node) ReadBarrier(ctx context.Context) (raftnode.Answer, error) {
	p := n.openProcess()
	if p == nil {
		return raftnode.Answer{}, errNotRunning
	}
	return p.propose(ctx, func(done raftnode.Done) {
		go func() {
			stamp, t, err := p.node.ReadBarrier(ctx)
			done(raftnode.Answer{Stamp: stamp, Time: t}, err)
		}()
	})
}

// MustPropose lets a node propose a command that is answered OK, or the test ends.
func (n *Node) MustPropose(c fsm.Command) raftnode.Answer {
	n.sim.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	a, err := n.Propose(ctx, c)
	if err != nil || a.Result.Code != fsm.OK {
		n.sim.Fatalf("%s: %T: %v, code %d", n.ID, c, err, a.Result.Code)
	}
	return a
}

// OpenSession opens a session.
func (n *Node) OpenSession(secret string, ttl time.Duration) session.ID {
	n.sim.Helper()
	return n.MustPropose(&fsm.OpenSession{Secret: hashOf(secret), Settings: session.Settings{TTL: clock.FromDuration(ttl)}}).Result.Session
}

// Lock acquires a lock for a session, or begins to wait for it.
func (n *Node) Lock(id session.ID, ticket uint64, name string) raftnode.Answer {
	n.sim.Helper()
	return n.MustPropose(acquireExclusive(id, ticket, name))
}

// acquireExclusive waits for a lock for as long as it takes.
func acquireExclusive(id session.ID, ticket uint64, name string) *fsm.Acquire {
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
