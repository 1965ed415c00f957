package fsm_test

import (
	"cmp"
	"slices"

	"zamok/fsm"
	"zamok/session"
)

// execute is one command. The index of every result and the session of every speaker are filled in
// by apply.
func (m *model) execute(c fsm.Command) fsm.Result {
	if field := invalidField(c); field != "" {
		return fsm.Result{Code: fsm.Invalid, Detail: &fsm.Detail{Field: field}}
	}
	switch c := c.(type) {
	case *fsm.OpenSession:
		return m.openSession(c)
	case *fsm.Attach:
		return m.attach(c)
	case *fsm.ReleaseOnDisconnect:
		return m.releaseOnDisconnect(c)
	case *fsm.CloseSession:
		return m.endSessionByID(c.Session, fsm.Closed, "", true)
	case *fsm.WithdrawSession:
		return m.endSessionByID(c.Session, fsm.Closed, "", false)
	case *fsm.ExpireSession:
		return m.endSessionByID(c.Session, fsm.ExpiredByOperator, c.Reason, true)
	case *fsm.Acquire:
		return m.acquire(c)
	case *fsm.Drop:
		return m.drop(c)
	case *fsm.DropUnrenewed:
		return m.drop((*fsm.Drop)(c))
	case *fsm.Downgrade:
		return m.downgrade(c)
	case *fsm.ForceRelease:
		return m.forceRelease(c)
	case *fsm.LeaderStart:
		return m.leaderStart(c)
	case *fsm.Member:
		return m.member(c)
	case *fsm.Digest:
		return m.report(c)
	case *fsm.SetLongestTTL:
		m.longestTTL, m.highestTTL = c.TTL, max(m.highestTTL, c.TTL)
		return fsm.Result{}
	case *fsm.SetQuotas:
		return m.setQuotas(c)
	case *fsm.Upgrade:
		// Rule 2 does not exist yet, so every number is a wrong step.
		return fsm.Result{Code: fsm.Invalid, Detail: &fsm.Detail{Field: "version"}}
	default:
		panic("a command that the model does not know")
	}
}

func (m *model) openSession(c *fsm.OpenSession) fsm.Result {
	s := m.sessionBySecret(c.Secret)
	if e := m.endedSession(c.Secret); s == nil && e != nil {
		return fsm.Result{Code: fsm.NoSession, Reason: e.Reason}
	}
	if s == nil && c.TTL > m.longestTTL {
		return fsm.Result{Code: fsm.Invalid, Detail: &fsm.Detail{Field: "ttl"}, TTL: m.longestTTL}
	}
	if s == nil {
		if field := m.overQuota(c.Identity, sessionAmounts(c)); field != "" {
			return fsm.Result{Code: fsm.LimitExceeded, Detail: &fsm.Detail{Field: field}}
		}
		s = &modelSession{OpenSession: c, id: session.ID(m.index),
			ended: map[uint64]fsm.TicketState{}}
		m.sessions = append(m.sessions, s)
		m.renew(s)
		m.forgetSessions(s.Identity)
	}
	return fsm.Result{Session: s.id, TTL: s.TTL}
}

func (m *model) attach(c *fsm.Attach) fsm.Result {
	s := m.session(c.Session)
	if s == nil {
		return m.noSession(c.Session)
	}
	if s.Secret != c.Secret {
		return fsm.Result{Code: fsm.WrongSecret}
	}
	if 0 < c.Attempt && c.Attempt <= s.attempt {
		return fsm.Result{Code: fsm.Superseded}
	}
	if s.attachment > m.out.Index {
		// once in an entry
		return fsm.Result{Code: fsm.LimitExceeded, Detail: &fsm.Detail{Field: "attach"}}
	}
	s.acknowledge(c.AckedThrough)
	s.attachment, s.attempt = m.index, max(s.attempt, c.Attempt)
	m.emit(fsm.Event{Kind: fsm.EvAttached, TicketRef: fsm.TicketRef{Session: s.id},
		Tickets: m.states(s)})
	return fsm.Result{}
}

// states are the tickets of a session that are live or not acknowledged, by number.
func (m *model) states(s *modelSession) (states []fsm.TicketState) {
	for _, t := range m.ticketsOf(s) {
		states = append(states, t.ticketState())
	}
	for _, t := range s.ended {
		states = append(states, t)
	}
	slices.SortFunc(states, func(a, b fsm.TicketState) int {
		return cmp.Compare(a.Ticket, b.Ticket)
	})
	return states
}

func (t *modelTicket) ticketState() fsm.TicketState {
	return fsm.TicketState{Ticket: t.Ticket, State: t.state, Token: t.token, HoldUntil: t.holdUntil}
}

func (m *model) releaseOnDisconnect(c *fsm.ReleaseOnDisconnect) fsm.Result {
	if c.Attachment == 0 {
		return fsm.Result{Code: fsm.Invalid, Detail: &fsm.Detail{Field: "attachment"}}
	}
	s := m.session(c.Session)
	if s == nil {
		return m.noSession(c.Session)
	}
	if s.attachment == c.Attachment && s.renewed <= c.Index {
		m.endSession(s, fsm.Disconnected, "", true)
	}
	return fsm.Result{}
}

func (m *model) endSessionByID(id session.ID, reason fsm.Reason, text string,
	remember bool) fsm.Result {
	s := m.session(id)
	if s == nil {
		return m.noSession(id)
	}
	m.endSession(s, reason, text, remember)
	return fsm.Result{}
}

// noSession answers for a session that is not alive; those from before a restore get that reason.
func (m *model) noSession(id session.ID) fsm.Result {
	r := fsm.Result{Code: fsm.NoSession}
	if 0 < id && uint64(id) <= m.restoredThrough {
		r.Reason = fsm.Restored
	}
	return r
}

// acknowledge raises acknowledged-through, below which only live tickets are known.
func (s *modelSession) acknowledge(ackedThrough uint64) {
	s.ackedThrough = max(s.ackedThrough, ackedThrough)
	for number := range s.ended {
		if number <= s.ackedThrough {
			delete(s.ended, number)
		}
	}
}

// aboveWindow reports a ticket that the session may not number yet.
func (s *modelSession) aboveWindow(ticket uint64) bool {
	return ticket > s.ackedThrough && ticket-s.ackedThrough > fsm.TicketWindow
}

func (m *model) acquire(c *fsm.Acquire) fsm.Result {
	s := m.session(c.Session)
	if s == nil {
		return m.noSession(c.Session)
	}
	s.acknowledge(c.AckedThrough)
	if r, known := m.knownResult(s, c.Ticket); known {
		return r
	}
	if s.aboveWindow(c.Ticket) {
		return fsm.Result{Code: fsm.LimitExceeded, Detail: &fsm.Detail{Field: "ticket"}}
	}
	t := &modelTicket{
		TicketRef: fsm.TicketRef{Session: s.id, Ticket: c.Ticket}, session: s, enqueued: m.index,
		request: c, items: c.Items,
	}
	if field := m.overQuota(s.Identity, ticketAmounts(t)); field != "" {
		s.refusedThrough, s.changed = max(s.refusedThrough, c.Ticket), m.index
		m.emit(fsm.Event{Kind: fsm.EvRefused, TicketRef: t.TicketRef, Reason: fsm.TooMany,
			Items: t.items})
		return fsm.Result{Code: fsm.LimitExceeded, State: fsm.Ended, Reason: fsm.TooMany,
			Detail: &fsm.Detail{Field: field}}
	}
	if len(m.ticketsOf(s)) >= fsm.TicketsMax {
		return m.refuseTicket(t, fsm.TooMany, fsm.Detail{Field: "tickets"})
	}
	if _, delays := m.used(func(*modelSession) bool { return false }); s.LockDelay > 0 &&
		delays > m.quotas.Bytes/4 {
		return m.refuseTicket(t, fsm.TooMany, fsm.Detail{Field: "delays"})
	}
	for _, item := range t.items {
		for u := range m.users(item.Name) {
			if u.item.Of != item.Of {
				return m.refuseTicket(t, fsm.KindMismatch,
					fsm.Detail{Field: item.Name, Of: u.item.Of})
			}
		}
	}
	if m.grantable(t) {
		m.grant(t)
		m.tickets = append(m.tickets, t)
		m.forgetSessions(s.Identity)
		m.emitGranted(t)
		return t.result()
	}
	if c.Wait == 0 {
		return m.refuseTicket(t, fsm.TryFailed, fsm.Detail{Blockers: m.blockers(t)})
	}
	for _, u := range m.tickets {
		if u.state == fsm.Waiting && u.sameOwner(t) {
			return m.refuseTicket(t, fsm.OwnerBusy,
				fsm.Detail{
					Blockers: []fsm.Blocker{{By: fsm.ByWaiter, TicketRef: u.TicketRef,
						Owner: c.Owner}}})
		}
	}
	t.state = fsm.Waiting
	m.tickets = append(m.tickets, t)
	if graph := m.edges(); reaches(graph, t.TicketRef, t.TicketRef) {
		m.tickets = m.tickets[:len(m.tickets)-1]
		m.waitGraphs[m.index] = graph
		return m.refuseTicket(t, fsm.Deadlocked, fsm.Detail{})
	}
	if c.Wait != fsm.Forever {
		t.waitUntil = m.time.Add(c.Wait)
	}
	s.changed = m.index
	for _, item := range t.items {
		m.changedQueues[item.Name] = true
		if m.time < m.holdOffUntil {
			// the quiet is a delay of every lock
			m.delays[item.Name] = max(m.delays[item.Name], m.holdOffUntil)
		}
	}
	m.forgetSessions(s.Identity)
	return t.result()
}

// refuseTicket refuses a ticket that never came into any queue, and remembers that.
func (m *model) refuseTicket(t *modelTicket, reason fsm.Reason, detail fsm.Detail) fsm.Result {
	m.remember(t.session, t.Ticket, reason, 0)
	m.forgetSessions(t.session.Identity)
	m.emit(fsm.Event{Kind: fsm.EvRefused, TicketRef: t.TicketRef, Reason: reason, Items: t.items})
	return fsm.Result{Code: codeOf(reason), State: fsm.Ended, Reason: reason, Detail: &detail}
}

func codeOf(reason fsm.Reason) fsm.Code {
	switch reason {
	case fsm.TryFailed:
		return fsm.NotAcquired
	case fsm.Deadlocked:
		return fsm.Deadlock
	case fsm.OwnerBusy:
		return fsm.OwnerWaits
	case fsm.KindMismatch:
		return fsm.LockKindMismatch
	case fsm.TooMany:
		return fsm.LimitExceeded
	default:
		return fsm.TicketEnded
	}
}

// knownResult answers for a ticket that acted before.
func (m *model) knownResult(s *modelSession, ticket uint64) (fsm.Result, bool) {
	if t := m.ticket(s, ticket); t != nil {
		return t.result(), true
	}
	if ended, known := s.ended[ticket]; known || ticket <= s.ackedThrough {
		return fsm.Result{Code: codeOf(ended.Reason), State: fsm.Ended, Reason: ended.Reason,
			Token: ended.Token}, true
	}
	if ticket <= s.refusedThrough {
		return fsm.Result{Code: fsm.LimitExceeded, State: fsm.Ended, Reason: fsm.TooMany}, true
	}
	return fsm.Result{}, false
}

func (t *modelTicket) result() fsm.Result {
	return fsm.Result{State: t.state, Token: t.token, HoldUntil: t.holdUntil}
}

func (m *model) drop(c *fsm.Drop) fsm.Result {
	s := m.session(c.Session)
	if s == nil {
		return m.noSession(c.Session)
	}
	s.acknowledge(c.AckedThrough)
	if t := m.ticket(s, c.Ticket); t != nil {
		m.endTicket(t, fsm.Dropped, "")
		return fsm.Result{State: fsm.Ended, Reason: fsm.Dropped, Token: t.token}
	}
	if r, known := m.knownResult(s, c.Ticket); known {
		r.Code = fsm.OK
		return r
	}
	if s.aboveWindow(c.Ticket) {
		return fsm.Result{Code: fsm.LimitExceeded, Detail: &fsm.Detail{Field: "ticket"}}
	}
	if m.overQuota(s.Identity, fsm.Amounts{Bytes: fsm.EndedBytes}) != "" {
		s.refusedThrough, s.changed = max(s.refusedThrough, c.Ticket), m.index
	} else {
		m.remember(s, c.Ticket, fsm.Dropped, 0)
		m.forgetSessions(s.Identity)
	}
	return fsm.Result{State: fsm.Ended, Reason: fsm.Dropped}
}

func (m *model) downgrade(c *fsm.Downgrade) fsm.Result {
	s := m.session(c.Session)
	if s == nil {
		return m.noSession(c.Session)
	}
	s.acknowledge(c.AckedThrough)
	t := m.ticket(s, c.Ticket)
	if t == nil || t.state != fsm.Granted || !slices.ContainsFunc(t.items, isMutex) {
		r, _ := m.knownResult(s, c.Ticket)
		r.Code = fsm.NotHeld
		return r
	}
	if slices.ContainsFunc(t.items, isExclusive) {
		t.items = slices.Clone(t.items)
		for i := range t.items {
			if isExclusive(t.items[i]) {
				t.items[i].Mode = fsm.Shared
			}
		}
		s.changed = m.index
		m.emit(fsm.Event{
			Kind: fsm.EvDowngraded, TicketRef: t.TicketRef, Token: t.token, HoldUntil: t.holdUntil,
			Items: t.items,
		})
	}
	return t.result()
}

func isMutex(item fsm.Item) bool     { return item.Of == 0 }
func isExclusive(item fsm.Item) bool { return item.Mode == fsm.Exclusive }

func (m *model) forceRelease(c *fsm.ForceRelease) fsm.Result {
	if c.Token > m.index {
		return fsm.Result{Code: fsm.Invalid, Detail: &fsm.Detail{Field: "token"}}
	}
	var ended []fsm.TicketRef
	for _, u := range slices.Collect(m.users(c.Name)) {
		if u.state == fsm.Granted && u.token <= c.Token {
			m.endTicket(u.modelTicket, fsm.ForceReleased, c.Reason)
			ended = append(ended, u.TicketRef)
		}
	}
	named := min(len(ended), fsm.EndedMax)
	return fsm.Result{Detail: &fsm.Detail{Ended: ended[:named], More: len(ended) - named}}
}

func (m *model) leaderStart(c *fsm.LeaderStart) fsm.Result {
	if m.cluster == (fsm.ClusterID{}) {
		m.cluster = c.Cluster
		m.index = max(m.index, c.TokenBase) // the one command that may skip indexes
	}
	m.epoch = m.index
	m.emit(fsm.Event{Kind: fsm.EvEpochStarted, Epoch: c})
	return fsm.Result{}
}

func (m *model) member(c *fsm.Member) fsm.Result {
	at := slices.IndexFunc(m.members, func(r fsm.MemberRecord) bool { return r.ID == c.ID })
	record := fsm.MemberRecord{Member: *c, Announced: m.index}
	if at >= 0 {
		before := m.members[at]
		m.members = slices.Delete(m.members, at, at+1)
		if record.Replaced = before.Replaced; before.Incarnation != c.Incarnation {
			record.Replaced = m.time
			m.replaced++
		}
	}
	m.members = append(m.members, record)
	if len(m.members) > fsm.MembersMax {
		m.members = m.members[1:]
		m.forgotten++
	}
	return fsm.Result{}
}

func (m *model) report(c *fsm.Digest) fsm.Result {
	m.emit(fsm.Event{Kind: fsm.EvDigestReported, Digest: c})
	return fsm.Result{}
}
