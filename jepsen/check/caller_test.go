package check

import (
	"fmt"
	"slices"
	"time"
)

// caller is one client of the naive service, after the other: it calls, holds, writes, and now and
// then dies, is paused, or is cut off.
type caller struct {
	s      *service
	name   string
	lease  *lease
	ticket uint64
	calls  uint64
	proof  time.Duration // when the latest answered renewal was sent
	cut    bool          // nothing it sends arrives
	dead   bool
	hold   *Hold
	mine   *asked
}

func (c *caller) open() {
	if c.s.now > c.s.end {
		return
	}
	c.cut, c.hold, c.ticket = false, nil, 0
	sent := c.s.now
	c.s.submit(func() {
		l := &lease{id: c.s.index, heard: c.s.time()}
		c.s.leases[l.id] = l
		c.s.in(0, func() { c.s.expire(l) })
		c.s.in(c.s.upTo(time.Millisecond), func() {
			c.lease, c.proof = l, sent
			c.s.h.Sessions = append(c.s.h.Sessions, Session{Session: l.id, Client: c.name, TTL: c.s.ttl})
			c.s.in(c.s.ttl/3, func() { c.beat(l) })
			c.next()
		})
	})
}

// trusts says whether the client may believe in its session.
func (c *caller) trusts() bool { return c.s.now < c.until() }

func (c *caller) until() time.Duration { return c.proof + c.s.ttl - margin(c.s.ttl) }

func (c *caller) beat(l *lease) {
	if c.dead || c.cut || c.lease != l || l.over || c.s.now > c.s.end+c.s.ttl {
		return
	}
	sent := c.s.now
	c.s.submit(func() {
		if l.over {
			return
		}
		l.heard = c.s.time()
		c.s.in(c.s.upTo(2*time.Millisecond), func() {
			c.s.h.Beats = append(c.s.h.Beats, Beat{Session: l.id, Sent: sent, Back: c.s.now})
			c.proof = max(c.proof, sent)
		})
	})
	c.s.in(c.s.ttl/3, func() { c.beat(l) })
}

// call sends a command of a session and gets an answer.
func (c *caller) call(op *Op, do func(), answered func()) {
	c.calls++
	op.Client, op.ID, op.Call, op.Outcome = c.name, c.calls, c.s.now, Unknown
	if c.s.chance(30) {
		c.s.h.Ops = append(c.s.h.Ops, *op) // before it is made, as who may be killed does
	}
	c.s.submit(func() {
		do()
		c.s.in(c.s.upTo(3*time.Millisecond), func() {
			if !c.dead && answered != nil {
				answered()
			}
		})
	})
}

func (c *caller) back(op *Op, o Outcome) {
	op.Return, op.Outcome = c.s.now, o
	c.s.h.Ops = append(c.s.h.Ops, *op)
}

func (c *caller) next() {
	s := c.s
	switch {
	case c.dead:
	case c.lease.over || !c.trusts():
		s.in(s.ttl, c.open)
	case s.now > s.end:
		op := &Op{Kind: OpClose, Ref: Ref{Session: c.lease.id}}
		c.call(op, func() { s.close(c.lease, "closed") }, func() { c.back(op, OK) })
	case s.chance(70):
		c.s.in(s.upTo(5*time.Millisecond), c.acquire)
	case s.chance(30):
		op := &Op{Kind: OpNow}
		c.call(op, func() { c.stamp(op) }, func() { c.back(op, OK); c.next() })
	case s.chance(50) && len(s.past) > 0:
		t := s.past[s.IntN(len(s.past))]
		c.check(t, c.next)
	default:
		op := &Op{Kind: OpGet, Items: []Item{{Name: s.name()}}}
		c.call(op, func() {
			c.stamp(op)
			for _, t := range s.held[op.Items[0].Name] {
				op.Holders = append(op.Holders, t.ref)
			}
		}, func() { c.back(op, OK); c.next() })
	}
}

func (c *caller) stamp(op *Op) { op.Term, op.Index, op.Time = c.s.term, c.s.index, c.s.time() }

func (c *caller) check(t *asked, then func()) {
	op := &Op{Kind: OpCheck, Ref: t.ref, Token: t.token, Items: []Item{{Name: t.items[0].Name}}}
	c.call(op, func() { c.stamp(op); op.Held = !t.over }, func() { c.back(op, OK); then() })
}

func (s *service) name() string { return s.item().Name }

func (s *service) item() Item {
	if n := s.IntN(s.mutexes + s.pools); n >= s.mutexes {
		return Item{Name: fmt.Sprint("pool-", n-s.mutexes), Mode: Permits, Permits: 1 + s.IntN(2), Of: 3}
	} else if s.chance(30) {
		return Item{Name: fmt.Sprint("lock-", n), Mode: Shared}
	} else {
		return Item{Name: fmt.Sprint("lock-", n), Mode: Exclusive}
	}
}

func (c *caller) acquire() {
	s := c.s
	items := []Item{s.item()}
	if other := s.item(); s.chance(15) && other.Name != items[0].Name {
		items = append(items, other)
	}
	c.ticket++
	op := &Op{Kind: OpLock, Ref: Ref{c.lease.id, c.ticket}, Items: items}
	if s.chance(25) {
		op.Kind = OpTryLock
	}
	t := &asked{ref: op.Ref, items: slices.Clone(items), client: c}
	over, l := false, c.lease
	t.granted = func() {
		s.in(s.upTo(3*time.Millisecond), func() {
			if c.dead || over {
				return
			}
			over = true
			if !c.trusts() || l.over {
				c.giveUp(op, t)
				return
			}
			op.Token = t.token
			c.back(op, OK)
			c.begin(op, t)
		})
	}
	c.call(op, func() {
		if t.over || l.over {
			return
		}
		l.heard = s.time()
		s.waiting = append(s.waiting, t)
		s.grant()
		if t.token == 0 && op.Kind == OpTryLock {
			s.finish(t, EvRefused, "try_failed")
		}
	}, func() {
		switch {
		case over:
		case t.over && t.token == 0 && op.Kind == OpTryLock:
			over = true
			c.back(op, Refused)
			c.next()
		case t.token == 0 && s.chance(80):
			op.Queued = s.now
		}
	})
	s.in(s.patience(), func() {
		if !over && !c.dead {
			over = true
			c.giveUp(op, t)
		}
	})
}

// patience is how long somebody waits: mostly longer than anything lasts.
func (s *service) patience() time.Duration {
	if s.chance(5) {
		return s.upTo(20 * time.Millisecond)
	}
	return 3 * s.ttl
}

// giveUp ends a wait without knowing what became of it.
func (c *caller) giveUp(op *Op, t *asked) {
	if c.s.chance(50) && !c.s.audit {
		op.Ref = Ref{} // as a caller who never learned its ticket
	}
	c.back(op, Unknown)
	c.s.submit(func() { c.s.finish(t, EvReleased, "dropped") })
	c.next()
}
