package sim

import (
	"context"
	"fmt"
	"sync"
	"time"

	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
)

// LoadConfig says what clients do.
type LoadConfig struct {
	Clients int
	TTL     time.Duration
	Locks   int           // mutexes that they share; there are as many permits of other names
	HoldMax time.Duration // at most so long; half of it between two acquisitions
	// DieEvery is how many acquisitions a client makes on average before it falls silent in the
	// middle of one. Zero: nobody dies.
	DieEvery int
}

// permitsPerLock is the limit of the load's permits.
const permitsPerLock = 3

// Load is clients at work. Each acquires one ticket at a time, holds it, and drops it.
type Load struct {
	*History
	sim    *Sim
	config LoadConfig
	stop   context.CancelFunc
	work   sync.WaitGroup
	abort  context.Context // ends when nobody waits for an orderly end any more
}

// Load starts clients; they work until Stop.
func (s *Sim) Load(c LoadConfig) *Load {
	ctx, stop := context.WithCancel(context.Background())
	abort, end := context.WithCancel(context.Background())
	l := &Load{History: newHistory(), sim: s, config: c, stop: stop, abort: abort}
	l.began = s.began
	s.cleanup(func() {
		end()
		l.Stop()
	})
	for i := range c.Clients {
		client := s.newClient(l.History, fmt.Sprintf("c%d", i+1), c.TTL)
		l.work.Go(func() { l.runClient(ctx, client) })
	}
	return l
}

// Stop lets every client finish what it does, give up what it has and close its session. It waits
// for that, so the cluster must be able to answer.
func (l *Load) Stop() {
	l.stop()
	l.work.Wait()
	time.Sleep(time.Second) // for the answers to the last renewals, which wait for company
}

// runClient is a client's life after life.
func (l *Load) runClient(ctx context.Context, c *Client) {
	for ctx.Err() == nil {
		l.runSession(ctx, c)
	}
}

// runSession is the life of one session. A client that was told to stop gives everything back first, so
// what it does then has a context of its own.
func (l *Load) runSession(ctx context.Context, c *Client) {
	renewCtx, cancel := context.WithCancel(l.abort)
	if c.open(renewCtx) != nil {
		cancel()
		return
	}
	var renewing sync.WaitGroup
	renewing.Go(func() { c.renewLoop(renewCtx) })
	defer renewing.Wait()
	defer cancel()
	for ctx.Err() == nil {
		if !l.acquire(renewCtx, c) {
			return
		}
		_ = sleepContext(ctx, time.Duration(c.randomBelow(int(l.config.HoldMax/2)+1)))
	}
	_, _ = c.retryUntilAnswered(renewCtx, OpClose, fsm.TicketRef{Session: c.session}, func() fsm.Command {
		return &fsm.CloseSession{Session: c.session}
	})
}

// acquire makes one acquisition, from asking to dropping. False: the session is over, or the
// client is.
func (l *Load) acquire(ctx context.Context, c *Client) (sessionAlive bool) {
	ref, ackedThrough := c.nextTicket()
	command := l.newAcquire(c, ref, ackedThrough)
	events := make(chan fsm.Event, 4)
	defer l.sim.Audit.Subscribe(ref, events)()
	if l.config.DieEvery > 0 && c.randomBelow(4*l.config.DieEvery) == 0 {
		l.sendAcquire(ctx, c, command) // it dies with the question on its lips
		return l.goSilent(c, nil)
	}
	switch r, ok := l.sendAcquire(ctx, c, command); {
	case !ok:
		c.acknowledge(ref.Ticket) // definitely not done, and not tried again
		return true
	case r.Code == fsm.NoSession:
		return false
	case r.State == fsm.Waiting:
		granted, alive := l.awaitGrant(ctx, c, command, events)
		if !alive {
			return false
		}
		if granted != nil {
			if !l.holdGrant(c, command, *granted) {
				return false
			}
		}
	case r.State == fsm.Granted:
		if !l.holdGrant(c, command, grant{r.Token, r.HoldUntil}) {
			return false
		}
	}
	a, err := c.retryUntilAnswered(ctx, OpRelease, ref, func() fsm.Command { return &fsm.Drop{Session: ref.Session, Ticket: ref.Ticket} })
	if err != nil || a.Result.Code == fsm.NoSession {
		return false
	}
	c.acknowledge(ref.Ticket)
	return true
}

// grant is what a client is told of one.
type grant struct {
	token     uint64
	holdUntil clock.Time
}

// newAcquire is what the client asks for next.
func (l *Load) newAcquire(c *Client, ref fsm.TicketRef, ackedThrough uint64) *fsm.Acquire {
	name := fmt.Sprintf("lock/%d", c.randomBelow(l.config.Locks))
	items := []fsm.Item{{Name: name, Mode: fsm.Exclusive}}
	switch c.randomBelow(10) {
	case 0, 1:
		items[0].Mode = fsm.Shared
	case 2:
		items[0] = fsm.Item{
			Name: fmt.Sprintf("permits/%d", c.randomBelow(l.config.Locks)),
			Mode: fsm.Permits, Permits: uint32(1 + c.randomBelow(2)), Limit: permitsPerLock,
		}
	case 3:
		if other := fmt.Sprintf("lock/%d", c.randomBelow(l.config.Locks)); other != name {
			items = append(items, fsm.Item{Name: other, Mode: fsm.Exclusive})
		}
	}
	waits := []clock.Span{0, fsm.Forever, fsm.Forever, clock.FromDuration(time.Duration(1 + c.randomBelow(int(2*l.config.TTL))))}
	a := &fsm.Acquire{Session: ref.Session, Ticket: ref.Ticket, AckedThrough: ackedThrough, Items: items, WaitFor: waits[c.randomBelow(len(waits))]}
	if c.randomBelow(10) == 0 {
		a.MaxHold = clock.FromDuration(time.Duration(1 + c.randomBelow(int(l.config.HoldMax))))
	}
	return a
}

// sendAcquire sends an acquisition until it has an answer. Half of those that were refused are given up
// (false): then it must turn out that none of them ever had an effect.
func (l *Load) sendAcquire(ctx context.Context, c *Client, command *fsm.Acquire) (fsm.Result, bool) {
	unknown := false
	for {
		a, err := l.sendOnce(ctx, c, command)
		if err == nil {
			return a.Result, true
		}
		unknown = unknown || outcomeOf(err) != NotDone
		if !unknown && c.randomBelow(2) == 0 {
			return fsm.Result{}, false
		}
		if sleepContext(ctx, retryPause) != nil {
			return fsm.Result{}, false
		}
	}
}

func (l *Load) sendOnce(ctx context.Context, c *Client, command *fsm.Acquire) (raftnode.Answer, error) {
	op := &Op{Kind: OpAcquire, Ref: fsm.TicketRef{Session: command.Session, Ticket: command.Ticket}, Items: command.Items}
	return c.call(ctx, op, func(n *raftnode.Node, done raftnode.Done) { n.Submit(command, done) })
}

// awaitGrant waits for a grant, for as long as a client's patience lasts. Nil: there is none, and what
// waits is to be dropped.
func (l *Load) awaitGrant(ctx context.Context, c *Client, command *fsm.Acquire, events <-chan fsm.Event) (g *grant, alive bool) {
	timeout := time.Now().Add(l.config.TTL/2 + time.Duration(c.randomBelow(int(4*l.config.TTL))))
	for time.Now().Before(timeout) {
		if l.shouldDie(c) {
			return nil, l.goSilent(c, nil)
		}
		again := time.NewTimer(waitPollInterval)
		select {
		case e := <-events:
			again.Stop()
			if e.Kind == fsm.EvGranted {
				return &grant{e.Token, e.HoldUntil}, true
			}
			return nil, true
		case <-again.C:
		}
		a, err := l.sendOnce(ctx, c, command)
		switch {
		case err != nil:
		case a.Result.Code == fsm.NoSession:
			return nil, false
		case a.Result.State == fsm.Granted:
			return &grant{a.Result.Token, a.Result.HoldUntil}, true
		case a.Result.State == fsm.Ended:
			return nil, true
		}
	}
	return nil, true
}

// holdGrant believes in a grant until it is dropped or trust ends.
func (l *Load) holdGrant(c *Client, command *fsm.Acquire, g grant) (alive bool) {
	b := Hold{
		Client: c.name, Token: g.token, Items: command.Items, From: l.sim.Elapsed(),
		Ref: fsm.TicketRef{Session: command.Session, Ticket: command.Ticket},
	}
	if l.config.DieEvery > 0 && c.randomBelow(l.config.DieEvery) == 0 {
		return l.goSilent(c, &heldGrant{b, g})
	}
	until := time.Now().Add(time.Duration(1 + c.randomBelow(int(l.config.HoldMax))))
	for time.Now().Before(until) {
		left := c.holdTimeLeft(g)
		if left <= 0 {
			break
		}
		// Trust may be extended meanwhile, so the end is looked up again.
		time.Sleep(min(left, time.Until(until)))
	}
	b.To = l.sim.Elapsed()
	l.addHold(b)
	return true
}

// holdTimeLeft is how much longer the client may believe in a grant if nothing else is heard.
func (c *Client) holdTimeLeft(g grant) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.source.Now()
	until, confirmedUntil := c.localDeadline.Until()
	if !confirmedUntil {
		return 0
	}
	remaining := now.Until(until)
	if g.holdUntil != 0 {
		end, _ := c.localDeadline.Local(g.holdUntil)
		remaining = min(remaining, now.Until(end))
	}
	return remaining.Duration()
}

// heldGrant is a grant that a client died with.
type heldGrant struct {
	belief Hold
	grant  grant
}

func (l *Load) shouldDie(c *Client) bool {
	return l.config.DieEvery > 0 && c.randomBelow(4*l.config.DieEvery) == 0
}

// goSilent lets a client fall silent. It is the hardest kind of silence: its network is gone, and it
// continues believing for as long as it may.
func (l *Load) goSilent(c *Client, h *heldGrant) (alive bool) {
	if h != nil {
		h.belief.To = h.belief.From + max(0, c.holdTimeLeft(h.grant))
		l.addHold(h.belief)
	}
	l.addDeath(Death{Client: c.name, Session: c.session, TTL: c.ttl})
	l.sim.Trace.Note(c.name, "dies, session %d", c.session)
	return false
}
