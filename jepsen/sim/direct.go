package sim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"zamok/clock"
	"zamok/fsm"
	"zamok/jepsen/check"
	"zamok/jepsen/workload"
	"zamok/raftnode"
	"zamok/session"
)

// Proposals that a story makes to one node, without a client and its retries.

const (
	// answerTimeout is how long a story waits for one answer: far longer than a healthy cluster takes.
	answerTimeout = 5 * time.Second
	// opTimeout is how long it waits for one that it may not get.
	opTimeout = time.Second
	// retryPause is the pause before it asks again.
	retryPause = 50 * time.Millisecond
)

var (
	// errProcessExited is what a client sees of a process that ended: the end of its connection, no answer.
	errProcessExited = fmt.Errorf("the process ended: %w", raftnode.ErrUnknown)
	errNotRunning    = errors.New("not done: no process runs there")
)

// propose hands the process here something to do and waits for its answer, for its end, or for ctx. Run sees
// that there is exactly one answer to each proposal, also if the caller waits no more.
func (n *Node) propose(ctx context.Context, submit func(*raftnode.Node, raftnode.Done)) (raftnode.Answer, error) {
	p := n.openProcess()
	if p == nil {
		return raftnode.Answer{}, errNotRunning
	}
	type result struct {
		answer raftnode.Answer
		err    error
	}
	results := make(chan result, 2)
	n.sim.unanswered.Add(1)
	submit(p.node, func(a raftnode.Answer, err error) {
		n.sim.unanswered.Add(-1)
		results <- result{a, err}
	})
	select {
	case <-p.stopping:
		return raftnode.Answer{}, errProcessExited
	default:
	}
	select {
	case r := <-results:
		return r.answer, r.err
	case <-p.stopping:
		return raftnode.Answer{}, errProcessExited
	case <-ctx.Done():
		return raftnode.Answer{}, fmt.Errorf("%w (%w)", raftnode.ErrUnknown, context.Cause(ctx))
	}
}

// Propose proposes a command at this node.
func (n *Node) Propose(ctx context.Context, c fsm.Command) (raftnode.Answer, error) {
	if acquire, ok := c.(*fsm.Acquire); ok { // the grant may come with any answer, or without one
		n.sim.record.put(check.Record{Op: &check.Op{
			Client: "story", Kind: check.OpLock, Items: checkItems(acquire.Items), Outcome: check.Unknown,
			Ref: checkRef(fsm.TicketRef{Session: acquire.Session, Ticket: acquire.Ticket}), Call: n.sim.historyTime(),
		}})
	}
	return n.propose(ctx, func(up *raftnode.Node, done raftnode.Done) { up.Submit(c, done) })
}

// Renew proposes a renewal at this node.
func (n *Node) Renew(ctx context.Context, id session.ID) (raftnode.Answer, error) {
	return n.propose(ctx, func(up *raftnode.Node, done raftnode.Done) { up.Renew(id, done) })
}

// ReadBarrier waits until this node has confirmed that it leads.
func (n *Node) ReadBarrier(ctx context.Context) (raftnode.Answer, error) {
	return n.propose(ctx, func(up *raftnode.Node, done raftnode.Done) {
		go func() {
			stamp, t, err := up.ReadBarrier(ctx)
			done(raftnode.Answer{Stamp: stamp, Time: t}, err)
		}()
	})
}

// MustPropose proposes a command at this node that is answered OK, or the test ends.
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
	return n.MustPropose(openSession(secret, ttl)).Result.Session
}

// Lock acquires a lock for a session, or begins to wait for it.
func (n *Node) Lock(id session.ID, ticket uint64, name string) raftnode.Answer {
	n.sim.Helper()
	return n.MustPropose(acquireExclusive(id, ticket, name))
}

func openSession(secret string, ttl time.Duration) *fsm.OpenSession {
	c := &fsm.OpenSession{Settings: session.Settings{TTL: clock.FromDuration(ttl)}}
	copy(c.Secret[:], secret)
	return c
}

// acquireExclusive waits for a lock for as long as it takes.
func acquireExclusive(id session.ID, ticket uint64, name string) *fsm.Acquire {
	return &fsm.Acquire{
		Session: id, Ticket: ticket, WaitFor: fsm.Forever,
		Items: []fsm.Item{{Name: name, Mode: fsm.Exclusive}},
	}
}

// notDone reports whether an error means that a proposal has no effect and never will have.
func notDone(err error) bool {
	if _, ok := errors.AsType[*raftnode.NotLeaderError](err); ok {
		return true
	}
	for _, definite := range []error{raftnode.ErrOverloaded, raftnode.ErrClosed, raftnode.ErrOtherVersion, errNotRunning} {
		if errors.Is(err, definite) {
			return true
		}
	}
	return false
}

// Holder holds or awaits one lock, as ticket 1 of its session, and renews until it dies.
type Holder struct {
	Ref   fsm.TicketRef
	Token uint64 // 0: it waits

	// Die ends the renewals.
	Die func()

	sim *Sim

	mu        sync.Mutex
	confirmed time.Duration // when the last request was sent that was answered; guarded by mu
}

// Holder has a new session acquire a lock, or begin to wait for it, and renew.
func (s *Sim) Holder(name, lock string, ttl time.Duration) *Holder {
	s.Helper()
	h := &Holder{sim: s}
	ask := func(what string, c fsm.Command) fsm.Result {
		a, err := h.askLeader(s.Within(electionTimeMax), func(ctx context.Context, n *Node) (raftnode.Answer, error) {
			return n.Propose(ctx, c)
		})
		if err != nil || a.Result.Code != fsm.OK {
			s.Fatalf("%s can't %s: %v, code %d", name, what, err, a.Result.Code)
		}
		return a.Result
	}
	id := ask("open a session", openSession(name, ttl)).Session
	s.record.mu.Lock()
	s.record.addSession(check.Session{Session: uint64(id), Client: name, TTL: ttl})
	s.record.mu.Unlock()
	h.Ref = fsm.TicketRef{Session: id, Ticket: 1}
	h.Token = ask("wait for "+lock, acquireExclusive(id, 1, lock)).Token
	h.Die = background(func(ctx context.Context) {
		for ctx.Err() == nil {
			next := time.Now().Add(ttl / 3)
			a, _ := h.askLeader(ctx, func(ctx context.Context, n *Node) (raftnode.Answer, error) { return n.Renew(ctx, id) })
			if a.Result.Code == fsm.NoSession || !workload.Sleep(ctx, time.Until(next)) {
				return
			}
		}
	})
	s.cleanup(h.Die)
	return h
}

// askLeader asks the nodes that lead, as they see it, until one answers.
func (h *Holder) askLeader(ctx context.Context, ask func(context.Context, *Node) (raftnode.Answer, error)) (raftnode.Answer, error) {
	for {
		for _, n := range h.sim.Leaders() {
			limited, cancel := context.WithTimeout(ctx, opTimeout)
			sent := h.sim.Elapsed()
			a, err := ask(limited, n)
			cancel()
			if err == nil {
				h.confirm(a.Result, sent)
				return a, nil
			}
		}
		if !workload.Sleep(ctx, retryPause) {
			return raftnode.Answer{}, context.Cause(ctx)
		}
	}
}

func (h *Holder) confirm(r fsm.Result, sent time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.confirmed = sent
	if r.Code == fsm.OK {
		h.sim.record.put(check.Record{Renewal: &check.Renewal{
			Session: uint64(r.Session), Sent: sent + historyBegin, Confirmed: h.sim.historyTime(),
		}})
	}
}

// LastConfirmedSend is when the last request was sent that was answered.
func (h *Holder) LastConfirmedSend() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.confirmed
}

// Ended reports whether its session has ended.
func (h *Holder) Ended() bool {
	_, ended := h.sim.Audit.Ended(h.Ref.Session)
	return ended
}
