package check

import "time"

// begin is the moment in which a caller has its lock.
func (c *caller) begin(op *Op, t *asked) {
	s := c.s
	b := &Hold{Client: c.name, Ref: op.Ref, Token: op.Token, Items: op.Items, From: s.now}
	c.hold, c.mine = b, t
	if s.chance(20) {
		s.h.Holds = append(s.h.Holds, *b)
	}
	c.watch(b)
	c.use(b, t)
}

// watch gives a lock up for lost when there is no more trust.
func (c *caller) watch(b *Hold) {
	c.s.in(max(0, c.until()-c.s.now), func() {
		switch {
		case c.dead || c.hold != b:
		case c.trusts():
			c.watch(b)
		default:
			c.lose(b, Expired)
		}
	})
}

func (c *caller) lose(b *Hold, why string) {
	t := c.mine
	c.hold, c.mine = nil, nil
	b.To, b.How, b.Why = c.s.now, Lost, why
	c.s.h.Holds = append(c.s.h.Holds, *b)
	if !c.cut {
		c.s.submit(func() { c.s.finish(t, EvReleased, "dropped") })
	}
	c.next()
}

// use does something under the lock, then goes on or ends it.
func (c *caller) use(b *Hold, t *asked) {
	s := c.s
	s.in(s.upTo(5*time.Millisecond), func() {
		if c.dead || c.hold != b {
			return
		}
		again := func() { c.use(b, t) }
		switch n := s.IntN(1000); {
		case s.now > s.end: // the close of the session is its release
			c.hold, c.mine = nil, nil
			b.To, b.How = s.now, Unlocked
			s.h.Holds = append(s.h.Holds, *b)
			c.next()
		case n < 250 && b.Items[0].Mode != Permits:
			c.write(b)
			again()
		case n < 350:
			c.check(t, again)
		case n < 380 && b.Downgraded == 0:
			c.downgrade(b, t, again)
		case n < 390 && s.faults:
			c.force(b, t)
			again()
		case n < 400 && s.faults && s.now < s.healed && s.now > s.spared:
			s.spared = s.now + s.upTo(2*s.ttl)
			c.misfortune(b)
		case n < 600:
			again()
		default:
			c.unlock(b, t)
		}
	})
}

func (c *caller) write(b *Hold) {
	s, it := c.s, b.Items[0]
	token, shared := b.Token, it.Mode == Shared || b.Downgraded != 0
	s.in(s.upTo(2*time.Millisecond), func() {
		w := Write{Resource: it.Name, Client: c.name, Token: token, Shared: shared, At: s.now}
		w.Accepted = token >= s.marks[it.Name]
		if w.Accepted && !shared {
			s.marks[it.Name] = token
		}
		s.h.Writes = append(s.h.Writes, w)
	})
}

func (c *caller) downgrade(b *Hold, t *asked, then func()) {
	op := &Op{Kind: OpDowngrade, Ref: b.Ref}
	b.Downgraded = c.s.now
	c.call(op, func() {
		for i, it := range t.items {
			if it.Mode == Exclusive && !t.over {
				t.items[i].Mode = Shared
			}
		}
		if !t.over {
			c.s.event(EvDowngraded, t, "")
		}
	}, func() { c.back(op, OK); then() })
}

// force is what an operator does to this caller's lock, and what the caller hears of it.
func (c *caller) force(b *Hold, t *asked) {
	s := c.s
	op := Op{
		Client: "operator", Kind: OpForce, Items: []Item{{Name: b.Items[0].Name}}, Token: b.Token, Call: s.now, Outcome: OK,
	}
	s.submit(func() {
		for _, other := range s.holdersOf(b.Items[0].Name, b.Token) {
			s.finish(other, EvLost, "revoked")
			holder := other.client
			s.in(s.upTo(3*time.Millisecond), func() {
				if h := holder.hold; h != nil && !holder.dead && h.Ref == other.ref {
					holder.lose(h, "revoked")
				}
			})
		}
		op.Return = s.now
		s.h.Ops = append(s.h.Ops, op)
	})
}

func (s *service) holdersOf(name string, upTo uint64) (found []*asked) {
	for _, t := range s.held[name] {
		if t.token <= upTo {
			found = append(found, t)
		}
	}
	return found
}

func (c *caller) unlock(b *Hold, t *asked) {
	s := c.s
	c.hold, c.mine = nil, nil
	b.To, b.How = s.now, Unlocked
	s.h.Holds = append(s.h.Holds, *b)
	op := &Op{Kind: OpUnlock, Ref: b.Ref}
	if s.chance(4) {
		// Nobody knows what became of it, until it is sent again.
		c.calls++
		op.Client, op.ID, op.Call = c.name, c.calls, s.now
		s.in(s.upTo(20*time.Millisecond), func() { c.back(op, Unknown); c.next() })
		s.in(s.upTo(100*time.Millisecond), func() { s.apply(func() { s.finish(t, EvReleased, "dropped") }) })
		return
	}
	why := OK
	c.call(op, func() {
		if t.over {
			why = Refused
		}
		s.finish(t, EvReleased, "dropped")
	}, func() { c.back(op, why); c.next() })
}

// misfortune: the caller dies, is paused beyond its lease, or is cut off until its lease is over.
func (c *caller) misfortune(b *Hold) {
	s := c.s
	switch s.IntN(3) {
	case 0:
		c.dead = true
		s.h.Faults = append(s.h.Faults, Fault{Kind: "kill client", Target: c.name, From: s.now, To: s.now})
		died := Session{Session: c.lease.id, Client: c.name, TTL: s.ttl, Died: s.now}
		s.h.Sessions = append(s.h.Sessions, died)
		s.h.Holds = append(s.h.Holds, *b)
		s.clients++
		heir := &caller{s: s, name: c.name + "'"}
		s.in(s.upTo(s.ttl), heir.open)
	case 1:
		c.cut, c.dead = true, true // it does nothing and sees nothing
		from, length := s.now, s.ttl+s.upTo(s.ttl)
		s.in(length, func() {
			s.h.Faults = append(s.h.Faults, Fault{Kind: "pause client", Target: c.name, From: from, To: s.now, Voids: true})
			c.dead = false
			if b.Items[0].Mode != Permits {
				c.write(b) // what it was about to do
			}
			s.in(s.upTo(noticeMax/2), func() {
				if c.hold == b { // an operator may have told it before
					c.lose(b, Expired)
				}
			})
		})
	default:
		c.cut = true
		s.h.Faults = append(s.h.Faults, Fault{Kind: "cut client", Target: c.name, From: s.now, To: s.now + s.ttl})
	}
}
