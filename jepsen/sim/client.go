package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/session"
)

const (
	// opTimeout is how long a client waits for one answer before it takes the outcome for unknown.
	opTimeout = time.Second
	// retryPause is the pause before it tries elsewhere.
	retryPause = 50 * time.Millisecond
	// waitPollInterval is when a client that waits for a lock asks again: a push may have been lost.
	waitPollInterval = 2 * time.Second
)

// Client is one session's worth of a program: it speaks to whichever node leads, repeats what has
// no answer, and believes in its session as package clock lets it.
type Client struct {
	name    string
	sim     *Sim
	history *History
	source  clock.Source
	ttl     time.Duration

	mu            sync.Mutex // guards what follows
	rand          *rand.Rand
	node          *Node // to whom it speaks
	secret        session.Hash
	session       session.ID
	localDeadline *clock.LocalDeadline
	ticket        uint64 // the last number used
	ackedThrough  uint64
	incarnation   int
}

func (s *Sim) newClient(h *History, name string, ttl time.Duration) *Client {
	c := &Client{
		name: name, sim: s, history: h, source: clock.Runtime(), ttl: ttl,
		rand: s.Random("client " + name), localDeadline: clock.NewLocalDeadline(clock.FromDuration(ttl)),
	}
	c.node = c.randomNode()
	return c
}

// randomBelow is a random number below n.
func (c *Client) randomBelow(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rand.IntN(n)
}

func (c *Client) randomNode() *Node {
	nodes := c.sim.Nodes()
	return nodes[c.rand.IntN(len(nodes))]
}

// call sends one transmission to the node that the client takes for the leader, and waits for what
// comes back. An answer of its session is proof that the session lived.
func (c *Client) call(ctx context.Context, op *Op, propose func(*raftnode.Node, raftnode.Done)) (raftnode.Answer, error) {
	c.mu.Lock()
	node, deadline, id := c.node, c.localDeadline, c.session
	c.mu.Unlock()
	op.Client, op.Node = c.name, node.ID
	sent := c.source.Now()
	c.history.recordSend(op)
	a, err := raftnode.Answer{}, errNotRunning
	if p := node.openProcess(); p != nil {
		limited, cancel := context.WithTimeout(ctx, opTimeout)
		a, err = p.propose(limited, func(done raftnode.Done) {
			propose(p.node, func(a raftnode.Answer, err error) {
				c.history.countAnswer(op)
				done(a, err)
			})
		})
		cancel()
	} else {
		c.history.countAnswer(op)
	}
	c.history.recordReturn(op, a, err)
	if err == nil && a.Result.Session != 0 {
		c.confirm(deadline, id, clock.Confirmation{Sent: sent, At: a.Time})
	}
	if err != nil {
		c.switchNode(node, err)
	}
	return a, err
}

// confirm takes an answer for proof, if the session is still that of the question.
func (c *Client) confirm(deadline *clock.LocalDeadline, id session.ID, p clock.Confirmation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.localDeadline == deadline && c.session == id {
		deadline.Confirm(p)
	}
}

// switchNode looks for another leader: whom the refusal names, else anybody.
func (c *Client) switchNode(from *Node, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.node != from {
		return
	}
	if other, ok := errors.AsType[*raftnode.NotLeaderError](err); ok && other.ID != "" && other.ID != from.ID {
		for _, n := range c.sim.Nodes() {
			if n.ID == other.ID {
				c.node = n
			}
		}
		return
	}
	c.node = c.randomNode()
}

// retryUntilAnswered repeats a command until it is answered, as a client does that lives; so it is sent in
// transmissions of their own, each dated by itself.
func (c *Client) retryUntilAnswered(ctx context.Context, kind OpKind, ref fsm.TicketRef, command func() fsm.Command) (raftnode.Answer, error) {
	for {
		cmd := command()
		op := &Op{Kind: kind, Ref: ref}
		if acquire, ok := cmd.(*fsm.Acquire); ok {
			op.Items = acquire.Items
		}
		a, err := c.call(ctx, op, func(n *raftnode.Node, done raftnode.Done) { n.Submit(cmd, done) })
		if err == nil {
			return a, nil
		}
		if sleepContext(ctx, retryPause) != nil {
			return a, err
		}
	}
}

// open opens a session under a new secret.
func (c *Client) open(ctx context.Context) error {
	c.mu.Lock()
	c.incarnation++
	c.secret = hashOf(fmt.Sprintf("%s life %d", c.name, c.incarnation))
	c.session, c.ticket, c.ackedThrough, c.localDeadline = 0, 0, 0, clock.NewLocalDeadline(clock.FromDuration(c.ttl))
	secret := c.secret
	c.mu.Unlock()
	for {
		op := &Op{Kind: OpOpen}
		a, err := c.call(ctx, op, func(n *raftnode.Node, done raftnode.Done) {
			n.Submit(&fsm.OpenSession{Secret: secret, Settings: session.Settings{TTL: clock.FromDuration(c.ttl), Identity: c.name}}, done)
		})
		if err == nil && a.Result.Code == fsm.OK {
			c.mu.Lock()
			c.session = a.Result.Session
			c.mu.Unlock()
			c.sim.Audit.TrackRenewals(a.Result.Session)
			return nil
		}
		if err := sleepContext(ctx, retryPause); err != nil {
			return err
		}
	}
}

// renew sends one renewal.
func (c *Client) renew(ctx context.Context) (raftnode.Answer, error) {
	c.mu.Lock()
	id := c.session
	c.mu.Unlock()
	return c.call(ctx, &Op{Kind: OpRenew, Ref: fsm.TicketRef{Session: id}}, func(n *raftnode.Node, done raftnode.Done) { n.Renew(id, done) })
}

// renewLoop renews until ctx ends or the session is over: each third of the ttl, counted from sending,
// and each twelfth while there is no answer.
func (c *Client) renewLoop(ctx context.Context) {
	for {
		from := time.Now()
		a, err := c.renew(ctx)
		next := from.Add(c.ttl / 3)
		if err != nil {
			next = from.Add(c.ttl / 12)
		}
		if err == nil && a.Result.Code == fsm.NoSession || sleepContext(ctx, time.Until(next)) != nil {
			return
		}
	}
}

// nextTicket is the number of a new acquisition, with the floor that goes with it.
func (c *Client) nextTicket() (ref fsm.TicketRef, ackedThrough uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ticket++
	return fsm.TicketRef{Session: c.session, Ticket: c.ticket}, c.ackedThrough
}

// acknowledge says that no Acquire of tickets up to this one will be sent any more.
func (c *Client) acknowledge(ticket uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ackedThrough = max(c.ackedThrough, ticket)
}
