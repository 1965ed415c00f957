package check

import (
	"fmt"
	"slices"
	"time"
)

// simClient is one client of the naive service, after the other: it calls, holds, writes, and now and
// then dies, is paused, or is cut off.
type simClient struct {
	service      *simService
	name         string
	lease        *sessionLease
	ticket       uint64
	calls        uint64
	confirmedAt  time.Duration // when the latest answered renewal was sent
	disconnected bool          // nothing it sends arrives
	dead         bool
	hold         *Hold
	request      *request
}

func (c *simClient) open() {
	if c.service.now > c.service.end {
		return
	}
	c.disconnected, c.hold, c.ticket = false, nil, 0
	sent := c.service.now
	c.service.submit(func() {
		l := &sessionLease{id: c.service.index, renewed: c.service.time()}
		c.service.leases[l.id] = l
		c.service.after(0, func() { c.service.expire(l) })
		c.service.after(c.service.randomDelay(time.Millisecond), func() {
			c.lease, c.confirmedAt = l, sent
			c.service.history.Sessions = append(c.service.history.Sessions, Session{Session: l.id, Client: c.name, TTL: c.service.ttl})
			c.service.after(c.service.ttl/3, func() { c.renew(l) })
			c.next()
		})
	})
}

// leaseValid says whether the client may believe in its session.
func (c *simClient) leaseValid() bool { return c.service.now < c.localDeadline() }

func (c *simClient) localDeadline() time.Duration {
	return c.confirmedAt + c.service.ttl - clockMargin(c.service.ttl)
}

func (c *simClient) renew(l *sessionLease) {
	if c.dead || c.disconnected || c.lease != l || l.ended || c.service.now > c.service.end+c.service.ttl {
		return
	}
	sent := c.service.now
	c.service.submit(func() {
		if l.ended {
			return
		}
		l.renewed = c.service.time()
		c.service.after(c.service.randomDelay(2*time.Millisecond), func() {
			c.service.history.Renewals = append(c.service.history.Renewals, Renewal{Session: l.id, Sent: sent, Confirmed: c.service.now})
			c.confirmedAt = max(c.confirmedAt, sent)
		})
	})
	c.service.after(c.service.ttl/3, func() { c.renew(l) })
}

// call sends a command of a session and gets an answer.
func (c *simClient) call(op *Op, do func(), answered func()) {
	c.calls++
	op.Client, op.ID, op.Call, op.Outcome = c.name, c.calls, c.service.now, Unknown
	if c.service.chance(30) {
		c.service.history.Ops = append(c.service.history.Ops, *op) // before it is made, as who may be killed does
	}
	c.service.submit(func() {
		do()
		c.service.after(c.service.randomDelay(3*time.Millisecond), func() {
			if !c.dead && answered != nil {
				answered()
			}
		})
	})
}

func (c *simClient) finish(op *Op, o Outcome) {
	op.Return, op.Outcome = c.service.now, o
	c.service.history.Ops = append(c.service.history.Ops, *op)
}

func (c *simClient) next() {
	s := c.service
	switch {
	case c.dead:
	case c.lease.ended || !c.leaseValid():
		s.after(s.ttl, c.open)
	case s.now > s.end:
		op := &Op{Kind: OpClose, Ref: Ref{Session: c.lease.id}}
		c.call(op, func() { s.close(c.lease, "closed") }, func() { c.finish(op, OK) })
	case s.chance(70):
		c.service.after(s.randomDelay(5*time.Millisecond), c.acquire)
	case s.chance(30):
		op := &Op{Kind: OpNow}
		c.call(op, func() { c.stamp(op) }, func() { c.finish(op, OK); c.next() })
	case s.chance(50) && len(s.recentGrants) > 0:
		t := s.recentGrants[s.IntN(len(s.recentGrants))]
		c.check(t, c.next)
	default:
		op := &Op{Kind: OpGet, Items: []Item{{Name: s.name()}}}
		c.call(op, func() {
			c.stamp(op)
			for _, t := range s.held[op.Items[0].Name] {
				op.Holders = append(op.Holders, t.ref)
			}
		}, func() { c.finish(op, OK); c.next() })
	}
}

func (c *simClient) stamp(op *Op) {
	op.Term, op.Index, op.Time = c.service.term, c.service.index, c.service.time()
}

func (c *simClient) check(t *request, then func()) {
	op := &Op{Kind: OpCheck, Ref: t.ref, Token: t.token, Items: []Item{{Name: t.items[0].Name}}}
	c.call(op, func() { c.stamp(op); op.Held = !t.ended }, func() { c.finish(op, OK); then() })
}

func (s *simService) name() string { return s.item().Name }

func (s *simService) item() Item {
	if n := s.IntN(s.mutexes + s.pools); n >= s.mutexes {
		return Item{Name: fmt.Sprint("pool-", n-s.mutexes), Mode: Permits, Permits: 1 + s.IntN(2), Limit: 3}
	} else if s.chance(30) {
		return Item{Name: fmt.Sprint("lock-", n), Mode: Shared}
	} else {
		return Item{Name: fmt.Sprint("lock-", n), Mode: Exclusive}
	}
}

func (c *simClient) acquire() {
	s := c.service
	items := []Item{s.item()}
	if other := s.item(); s.chance(15) && other.Name != items[0].Name {
		items = append(items, other)
	}
	c.ticket++
	op := &Op{Kind: OpLock, Ref: Ref{c.lease.id, c.ticket}, Items: items}
	if s.chance(25) {
		op.Kind = OpTryLock
	}
	t := &request{ref: op.Ref, items: slices.Clone(items), client: c}
	over, l := false, c.lease
	t.granted = func() {
		s.after(s.randomDelay(3*time.Millisecond), func() {
			if c.dead || over {
				return
			}
			over = true
			if !c.leaseValid() || l.ended {
				c.cancelWait(op, t)
				return
			}
			op.Token = t.token
			c.finish(op, OK)
			c.startHold(op, t)
		})
	}
	c.call(op, func() {
		if t.ended || l.ended {
			return
		}
		l.renewed = s.time()
		s.waiting = append(s.waiting, t)
		s.grant()
		if t.token == 0 && op.Kind == OpTryLock {
			s.endRequest(t, EvRefused, "try_failed")
		}
	}, func() {
		switch {
		case over:
		case t.ended && t.token == 0 && op.Kind == OpTryLock:
			over = true
			c.finish(op, Refused)
			c.next()
		case t.token == 0 && s.chance(80):
			op.Queued = s.now
		}
	})
	s.after(s.waitTimeout(), func() {
		if !over && !c.dead {
			over = true
			c.cancelWait(op, t)
		}
	})
}

// waitTimeout is how long somebody waits: mostly longer than anything lasts.
func (s *simService) waitTimeout() time.Duration {
	if s.chance(5) {
		return s.randomDelay(20 * time.Millisecond)
	}
	return 3 * s.ttl
}

// cancelWait ends a wait without knowing what became of it.
func (c *simClient) cancelWait(op *Op, t *request) {
	if c.service.chance(50) && !c.service.audit {
		op.Ref = Ref{} // as a caller who never learned its ticket
	}
	c.finish(op, Unknown)
	c.service.submit(func() { c.service.endRequest(t, EvReleased, "dropped") })
	c.next()
}
