package check

import "time"

// startHold is the moment in which a caller has its lock.
func (c *simClient) startHold(op *Op, t *request) {
	s := c.service
	b := &Hold{Client: c.name, Ref: op.Ref, Token: op.Token, Items: op.Items, From: s.now}
	c.hold, c.request = b, t
	if s.chance(20) {
		s.history.Holds = append(s.history.Holds, *b)
	}
	c.watch(b)
	c.useHold(b, t)
}

// watch gives a lock up for lost when there is no more trust.
func (c *simClient) watch(b *Hold) {
	c.service.after(max(0, c.localDeadline()-c.service.now), func() {
		switch {
		case c.dead || c.hold != b:
		case c.leaseValid():
			c.watch(b)
		default:
			c.loseHold(b, Expired)
		}
	})
}

func (c *simClient) loseHold(b *Hold, reason string) {
	t := c.request
	c.hold, c.request = nil, nil
	b.To, b.End, b.Reason = c.service.now, Lost, reason
	c.service.history.Holds = append(c.service.history.Holds, *b)
	if !c.disconnected {
		c.service.submit(func() { c.service.endRequest(t, EvReleased, "dropped") })
	}
	c.next()
}

// useHold does something under the lock, then continues or ends it.
func (c *simClient) useHold(b *Hold, t *request) {
	s := c.service
	s.after(s.randomDelay(5*time.Millisecond), func() {
		if c.dead || c.hold != b {
			return
		}
		again := func() { c.useHold(b, t) }
		switch n := s.IntN(1000); {
		case s.now > s.end: // the close of the session is its release
			c.hold, c.request = nil, nil
			b.To, b.End = s.now, Unlocked
			s.history.Holds = append(s.history.Holds, *b)
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
		case n < 400 && s.faults && s.now < s.healed && s.now > s.quietUntil:
			s.quietUntil = s.now + s.randomDelay(2*s.ttl)
			c.injectFault(b)
		case n < 600:
			again()
		default:
			c.unlock(b, t)
		}
	})
}

func (c *simClient) write(b *Hold) {
	s, it := c.service, b.Items[0]
	token, shared := b.Token, it.Mode == Shared || b.Downgraded != 0
	s.after(s.randomDelay(2*time.Millisecond), func() {
		w := Write{Resource: it.Name, Client: c.name, Token: token, Shared: shared, At: s.now}
		w.Accepted = token >= s.highestTokens[it.Name]
		if w.Accepted && !shared {
			s.highestTokens[it.Name] = token
		}
		s.history.Writes = append(s.history.Writes, w)
	})
}

func (c *simClient) downgrade(b *Hold, t *request, then func()) {
	op := &Op{Kind: OpDowngrade, Ref: b.Ref}
	b.Downgraded = c.service.now
	c.call(op, func() {
		for i, it := range t.items {
			if it.Mode == Exclusive && !t.ended {
				t.items[i].Mode = Shared
			}
		}
		if !t.ended {
			c.service.event(EvDowngraded, t, "")
		}
	}, func() { c.finish(op, OK); then() })
}

// force is what an operator does to this caller's lock, and what the caller hears of it.
func (c *simClient) force(b *Hold, t *request) {
	s := c.service
	op := Op{
		Client: "operator", Kind: OpForceRelease, Items: []Item{{Name: b.Items[0].Name}}, Token: b.Token, Call: s.now, Outcome: OK,
	}
	s.submit(func() {
		for _, other := range s.holdersOf(b.Items[0].Name, b.Token) {
			s.endRequest(other, EvLost, "revoked")
			holder := other.client
			s.after(s.randomDelay(3*time.Millisecond), func() {
				if h := holder.hold; h != nil && !holder.dead && h.Ref == other.ref {
					holder.loseHold(h, "revoked")
				}
			})
		}
		op.Return = s.now
		s.history.Ops = append(s.history.Ops, op)
	})
}

func (s *simService) holdersOf(name string, upTo uint64) (found []*request) {
	for _, t := range s.held[name] {
		if t.token <= upTo {
			found = append(found, t)
		}
	}
	return found
}

func (c *simClient) unlock(b *Hold, t *request) {
	s := c.service
	c.hold, c.request = nil, nil
	b.To, b.End = s.now, Unlocked
	s.history.Holds = append(s.history.Holds, *b)
	op := &Op{Kind: OpUnlock, Ref: b.Ref}
	if s.chance(4) {
		// Nobody knows what became of it, until it is sent again.
		c.calls++
		op.Client, op.ID, op.Call = c.name, c.calls, s.now
		s.after(s.randomDelay(20*time.Millisecond), func() { c.finish(op, Unknown); c.next() })
		s.after(s.randomDelay(100*time.Millisecond), func() { s.apply(func() { s.endRequest(t, EvReleased, "dropped") }) })
		return
	}
	why := OK
	c.call(op, func() {
		if t.ended {
			why = Refused
		}
		s.endRequest(t, EvReleased, "dropped")
	}, func() { c.finish(op, why); c.next() })
}

// injectFault: the caller dies, is paused beyond its lease, or is cut off until its lease is over.
func (c *simClient) injectFault(b *Hold) {
	s := c.service
	switch s.IntN(3) {
	case 0:
		c.dead = true
		s.history.Faults = append(s.history.Faults, Fault{Kind: "kill client", Target: c.name, From: s.now, To: s.now})
		died := Session{Session: c.lease.id, Client: c.name, TTL: s.ttl, Died: s.now}
		s.history.Sessions = append(s.history.Sessions, died)
		s.history.Holds = append(s.history.Holds, *b)
		s.clients++
		successor := &simClient{service: s, name: c.name + "'"}
		s.after(s.randomDelay(s.ttl), successor.open)
	case 1:
		c.disconnected, c.dead = true, true // it does nothing and sees nothing
		from, length := s.now, s.ttl+s.randomDelay(s.ttl)
		s.after(length, func() {
			s.history.Faults = append(s.history.Faults, Fault{Kind: "pause client", Target: c.name, From: from, To: s.now, ExcusesClient: true})
			c.dead = false
			if b.Items[0].Mode != Permits {
				c.write(b) // what it was about to do
			}
			s.after(s.randomDelay(noticeDelayMax/2), func() {
				if c.hold == b { // an operator may have told it before
					c.loseHold(b, Expired)
				}
			})
		})
	default:
		c.disconnected = true
		s.history.Faults = append(s.history.Faults, Fault{Kind: "cut client", Target: c.name, From: s.now, To: s.now + s.ttl})
	}
}
