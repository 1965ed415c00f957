package fsm

import (
	"cmp"

	"zamok/session"
)

// execute opens a session, or answers with the living one of the same secret. The secret of a
// session that is remembered opens no other one.
func (c *OpenSession) execute(m *Machine) Result {
	if field := invalidSettings(&c.Settings); field != "" {
		return invalid(field)
	}
	if id := m.bySecret[c.Secret]; id != 0 {
		// also if the longest ttl is below its own by now
		return Result{}.forSession(m.sessions.Ref(id))
	}
	if e, ended := m.EndedSession(c.Secret); ended {
		// this may be a late copy of what opened that
		return Result{Code: NoSession, Reason: e.Reason}
	}
	if c.TTL > m.longestTTL {
		r := invalid("ttl")
		r.TTL = m.longestTTL
		return r
	}
	if quota := m.overQuota(c.Identity, sessionAmounts(&c.Settings)); quota != "" {
		return Result{Code: LimitExceeded, Detail: &Detail{Field: quota}}
	}
	m.addSession(session.Session{
		ID: session.ID(m.index), Secret: c.Secret, Settings: c.Settings, Opened: m.time,
		Deadline: m.time.Add(c.TTL), Renewed: m.index,
	})
	m.makeRoom(c.Identity)
	return Result{}.forSession(m.sessions.Ref(session.ID(m.index)))
}

// addSession adds a session to the state. No living one may have the same secret.
func (m *Machine) addSession(s session.Session) {
	m.schedule(&s)
	m.charge(s.Identity, sessionAmounts(&s.Settings), 1)
	m.bySecret[s.Secret] = s.ID
	m.sessions.Set(s.ID, s)
}

// recordChange notes that a ticket of the session changed, and by how much the number of live
// tickets did.
func (m *Machine) recordChange(s *session.Session, live int) {
	s.Changed = m.index
	s.Live += live
}

// execute makes this command the session's attachment and emits its whole state as one event.
func (c *Attach) execute(m *Machine) Result {
	s := m.sessions.Ref(c.Session)
	if s == nil {
		return m.noSession(c.Session)
	}
	if s.Secret != c.Secret {
		return Result{Code: WrongSecret}
	}
	if c.Attempt != 0 && c.Attempt <= s.Attempt {
		return Result{Code: Superseded}.forSession(s)
	}
	if s.Attachment > m.out.Index || m.attached.left(s.Identity) <= 0 {
		// It attached in this very entry, or others with many tickets did. To send all tickets
		// again and again would cost too much.
		return Result{Code: LimitExceeded, Detail: &Detail{Field: "attach"}}.forSession(s)
	}
	m.acknowledge(s, c.AckedThrough)
	s.Attachment, s.Attempt = m.index, max(s.Attempt, c.Attempt)
	tickets := m.ticketStates(s.ID)
	m.attached.spend(s.Identity, len(tickets))
	m.emit(Event{Kind: EvAttached, TicketRef: TicketRef{Session: s.ID}, Tickets: tickets})
	return Result{}.forSession(s)
}

// execute ends a session whose stream broke, unless there was a renewal since. A session that was
// never attached has no stream to break.
func (c *ReleaseOnDisconnect) execute(m *Machine) Result {
	if c.Attachment == 0 {
		return invalid("attachment")
	}
	s := m.sessions.Ref(c.Session)
	if s == nil {
		return m.noSession(c.Session)
	}
	if s.Attachment == c.Attachment && s.Renewed <= c.Index {
		m.endSession(s.ID, Disconnected, "", true)
	}
	return Result{}
}

func (c *CloseSession) execute(m *Machine) Result {
	return m.endLiving(c.Session, Closed, "", true)
}

// execute closes a session so that its secret opens another one.
func (c *WithdrawSession) execute(m *Machine) Result {
	return m.endLiving(c.Session, Closed, "", false)
}

func (c *ExpireSession) execute(m *Machine) Result {
	if !isText(c.Reason, 0, ReasonBytesMax) {
		return invalid("reason")
	}
	return m.endLiving(c.Session, ExpiredByOperator, c.Reason, true)
}

func (m *Machine) endLiving(id session.ID, reason Reason, text string, remember bool) Result {
	if m.sessions.Ref(id) == nil {
		return m.noSession(id)
	}
	m.endSession(id, reason, text, remember)
	return Result{}
}

// endSession ends a session with all its tickets, whose number it returns; waiters behind them are
// granted by grantUnblocked. One that its owner closed, or that held a lock or may have, is
// remembered. One that is withdrawn is, if what it held had ended before.
func (m *Machine) endSession(id session.ID, reason Reason, text string,
	remember bool) (tickets int) {
	s := m.sessions.Ref(id)
	e, held := EndedSession{ID: id, Secret: s.Secret, Identity: s.Identity, Reason: reason},
		s.AckedThrough > 0
	keys := m.keyBuffer[:0]
	for key, t := range ticketsOf(m.tickets, TicketRef{Session: id}) {
		keys = append(keys, key)
		e.Ticket, held = cmp.Or(t.reason, reason),
			held || t.token != 0 && (remember || t.state == Ended)
		m.charge(s.Identity, t.amounts(), gone)
	}
	for _, key := range keys {
		if t := m.tickets.Ref(key); t.state != Ended {
			m.releaseSlots(s, key, t, reason, text)
		}
		m.tickets.Delete(key)
	}
	m.keyBuffer = keys
	// which one a repeated close asks for would not be known
	if len(keys) > 1 || s.AckedThrough > 0 {
		e.Ticket = 0
	}
	label := s.Label
	m.due.Delete(sessionDue(s))
	m.charge(s.Identity, sessionAmounts(&s.Settings), gone)
	delete(m.bySecret, s.Secret)
	m.sessions.Delete(id)
	if held || remember && reason == Closed {
		m.rememberSession(e)
	}
	m.emit(Event{Kind: EvSessionEnded, TicketRef: TicketRef{Session: id}, Reason: reason,
		Text: text, Label: label})
	return len(keys)
}

// noSession answers a command of a session that is not alive.
func (m *Machine) noSession(id session.ID) Result {
	r := Result{Code: NoSession}
	if id != 0 && uint64(id) <= m.restoredThrough {
		r.Reason = Restored
	}
	return r
}
