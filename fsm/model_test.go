package fsm_test

import (
	"cmp"
	"iter"
	"maps"
	"slices"

	"zamok/clock"
	"zamok/fsm"
	"zamok/session"
)

// model is the machine a second time, written from the package comment alone and as slowly as it
// likes: slices that are walked from end to end for every question, and nothing kept that could be
// computed. Where the two differ, one of them misread the version.
//
// It takes entries as values and knows no codec, no digest, no snapshot and no version but the
// first. It searches the whole graph for a deadlock, and reports every attachment, so it speaks for
// entries that are far below SearchMax and AttachedMax.
type model struct {
	index           uint64
	term            uint64
	time            clock.Time
	epoch           uint64 // 0 = none in force
	cluster         fsm.ClusterID
	sessions        []*modelSession       // the living, by id
	tickets         []*modelTicket        // waiting and granted, by enqueued
	delays          map[string]clock.Time // closed until
	members         []fsm.MemberRecord    // the latest announcement last
	restoredThrough uint64                // the index that a restored history began with
	holdOffUntil    clock.Time            // nothing is granted before
	longestTTL      clock.Span            // of a session that is opened
	highestTTL      clock.Span            // the highest that this ever was
	quotas          fsm.Quotas
	ended           []fsm.EndedSession // the oldest first

	out           fsm.Applied
	changedQueues map[string]bool        // queues that a ticket joined or left in this step
	waitGraphs    map[uint64][]modelEdge // by the index of each Acquire refused as a deadlock

	modelCounts
}

// modelCounts is what happened to the records of members, which no answer contains.
type modelCounts struct {
	replaced  int // members that came with another incarnation
	forgotten int // members
	outlived  int // ended sessions that were forgotten
}

type modelSession struct {
	*fsm.OpenSession // as it was opened
	id               session.ID
	deadline         clock.Time
	renewed          uint64
	attachment       uint64
	attempt          uint64
	ackedThrough     uint64
	// the index of the last change of any of its tickets
	changed        uint64
	ended          map[uint64]fsm.TicketState // above acknowledged-through
	refusedThrough uint64                     // what is unknown up to here was refused by a quota
}

type modelTicket struct {
	fsm.TicketRef
	session   *modelSession
	enqueued  uint64
	request   *fsm.Acquire
	items     []fsm.Item // as asked, until a Downgrade
	state     fsm.State
	token     uint64
	waitUntil clock.Time // 0 = forever
	holdUntil clock.Time // 0 = forever
}

func newModel() *model {
	return &model{
		longestTTL: fsm.LongestTTLDefault,
		highestTTL: fsm.LongestTTLDefault,
		quotas:     fsm.QuotasDefault(),
		delays:     map[string]clock.Time{},
		waitGraphs: map[uint64][]modelEdge{},
	}
}

// startHistory makes a backup of the model the beginning of another history. How long that is quiet
// is left to the machine: it depends on leases and delays that may have been given long ago.
func (m *model) startHistory(h fsm.NewHistory, holdOff clock.Time) {
	index, now, term := max(m.index, h.AboveIndex), max(m.time, h.Time), m.term
	if h.Clock != 0 {
		for least := index; ; h.Clock += fsm.TokenLead {
			if index = h.Clock; index >= least {
				break
			}
		}
	}
	counts, longest, highest, quotas := m.modelCounts, m.longestTTL, m.highestTTL, m.quotas
	*m = *newModel()
	m.modelCounts, m.longestTTL, m.highestTTL, m.quotas = counts, longest, highest, quotas
	m.index, m.restoredThrough, m.time, m.holdOffUntil, m.term, m.cluster = index, index, now,
		holdOff, term, h.Cluster
}

// apply is one entry: advance, hear, expire, act.
func (m *model) apply(term uint64, e *fsm.Entry) fsm.Applied {
	if e.Version != 1 {
		m.beginEntry(term)
		m.out.Refused = fsm.OtherVersion
		return m.finishEntry()
	}
	m.beginEntry(term)
	m.time = clock.Advance(m.time, m.epoch, e.Reading)
	m.renewSenders(e)
	m.expireDue()
	m.grantUnblocked()
	for _, c := range e.Commands {
		m.index++
		r := m.execute(c)
		r.Index = m.index
		if s := m.senderSession(c); s != nil && r.Code != fsm.Invalid {
			r.Session, r.TTL = s.id, s.TTL
		}
		m.out.Results = append(m.out.Results, r)
		m.grantUnblocked()
	}
	return m.finishEntry()
}

func (m *model) beginEntry(term uint64) {
	if term != m.term {
		m.epoch = 0 // an epoch ends with its term
	}
	m.term = term
	m.index++
	m.out = fsm.Applied{Index: m.index}
	m.changedQueues = map[string]bool{}
}

func (m *model) finishEntry() fsm.Applied {
	m.out.Stamp, m.out.Time = clock.Stamp{Term: m.term, Index: m.index}, m.time
	return m.out
}

func (m *model) emit(e fsm.Event) {
	e.Index = m.index
	m.out.Events = append(m.out.Events, e)
}

func (m *model) renewSenders(e *fsm.Entry) {
	for _, id := range e.Renewals {
		if s := m.session(id); s != nil {
			m.renew(s)
		} else {
			m.out.Unrenewed = append(m.out.Unrenewed, id)
		}
	}
	for _, c := range e.Commands {
		if s := m.senderSession(c); s != nil {
			m.renew(s)
		}
	}
}

func (m *model) renew(s *modelSession) { s.deadline, s.renewed = m.time.Add(s.TTL), m.index }

// senderSession is the living session whose own command c is.
func (m *model) senderSession(c fsm.Command) *modelSession {
	switch c := c.(type) {
	case *fsm.OpenSession:
		return m.sessionBySecret(c.Secret)
	case *fsm.Attach:
		if s := m.session(c.Session); s != nil && s.Secret == c.Secret {
			return s
		}
		return nil
	case *fsm.Acquire:
		return m.session(c.Session)
	case *fsm.Drop:
		return m.session(c.Session)
	case *fsm.Downgrade:
		return m.session(c.Session)
	case *fsm.CloseSession:
		return m.session(c.Session)
	case *fsm.WithdrawSession:
		return m.session(c.Session)
	default:
		return nil
	}
}

func (m *model) session(id session.ID) *modelSession {
	for _, s := range m.sessions {
		if s.id == id {
			return s
		}
	}
	return nil
}

func (m *model) sessionBySecret(secret session.Hash) *modelSession {
	for _, s := range m.sessions {
		if s.Secret == secret {
			return s
		}
	}
	return nil
}

// modelDue is something that ends by itself.
type modelDue struct {
	at     clock.Time
	kind   int // in the order of expiration
	id     uint64
	name   string
	expire func() (cost int)
}

const (
	dueSession = iota
	dueWait
	dueDelay
	dueHold
)

// expire ends what is due, one after the other, as far as one entry may.
func (m *model) expireDue() {
	for expired := 0; expired < fsm.ExpirationsMax; {
		first, ok := m.nextDue()
		if !ok || first.at > m.time {
			return
		}
		expired += first.expire()
	}
}

func (m *model) nextDue() (first modelDue, ok bool) {
	consider := func(d modelDue) {
		if !ok || cmp.Or(cmp.Compare(d.at, first.at), cmp.Compare(d.kind, first.kind),
			cmp.Compare(d.id, first.id), cmp.Compare(d.name, first.name)) < 0 {
			first, ok = d, true
		}
	}
	for _, s := range m.sessions {
		consider(modelDue{s.deadline, dueSession, uint64(s.id), "",
			func() int { return 1 + m.endSession(s, fsm.Expired, "", true) }})
	}
	for _, t := range m.tickets {
		if t.state == fsm.Waiting && t.waitUntil != 0 {
			consider(modelDue{t.waitUntil, dueWait, t.enqueued, "",
				func() int { m.endTicket(t, fsm.WaitTimeout, ""); return 1 }})
		}
		if t.state == fsm.Granted && t.holdUntil != 0 {
			consider(modelDue{t.holdUntil, dueHold, t.enqueued, "",
				func() int { m.endTicket(t, fsm.MaxHoldExceeded, ""); return 1 }})
		}
	}
	for name, until := range m.delays {
		consider(modelDue{until, dueDelay, 0, name,
			func() int { delete(m.delays, name); return 1 }})
	}
	return first, ok
}

// endSession ends a session with all its tickets and returns how many those were, ended ones too.
func (m *model) endSession(s *modelSession, reason fsm.Reason, text string,
	remember bool) (tickets int) {
	tickets = len(m.ticketsOf(s)) + len(s.ended)
	states := m.states(s)
	for _, t := range m.ticketsOf(s) {
		m.endTicket(t, reason, text)
	}
	m.sessions = slices.DeleteFunc(m.sessions, func(o *modelSession) bool { return o == s })
	m.rememberSession(s, states, reason, !remember)
	m.emit(fsm.Event{
		Kind: fsm.EvSessionEnded, TicketRef: fsm.TicketRef{Session: s.id}, Reason: reason,
		Text: text, Label: s.Label,
	})
	return tickets
}

// ticket is a session's live ticket of that number, or nil.
func (m *model) ticket(s *modelSession, number uint64) *modelTicket {
	for _, t := range m.tickets {
		if t.session == s && t.Ticket == number {
			return t
		}
	}
	return nil
}

// ticketsOf are a session's live tickets by number.
func (m *model) ticketsOf(s *modelSession) (live []*modelTicket) {
	for _, t := range m.tickets {
		if t.session == s {
			live = append(live, t)
		}
	}
	slices.SortFunc(live, func(t, u *modelTicket) int { return cmp.Compare(t.Ticket, u.Ticket) })
	return live
}

// endTicket takes a live ticket from its locks. Tickets that this makes room for are granted by
// settle.
func (m *model) endTicket(t *modelTicket, reason fsm.Reason, text string) {
	byClient := reason == fsm.Dropped || reason == fsm.Closed
	event := fsm.Event{Kind: fsm.EvRefused, TicketRef: t.TicketRef, Token: t.token, Reason: reason,
		Text: text, Items: t.items}
	if t.token != 0 {
		event.Identity = t.session.Identity
	}
	if byClient {
		event.Kind = fsm.EvReleased
	} else if t.state == fsm.Granted {
		event.Kind = fsm.EvLost
	}
	for _, item := range t.items {
		if t.state == fsm.Waiting {
			m.changedQueues[item.Name] = true
		} else if !byClient && t.session.LockDelay > 0 {
			m.delays[item.Name] = max(m.delays[item.Name], m.time.Add(t.session.LockDelay))
		}
	}
	m.tickets = slices.DeleteFunc(m.tickets, func(o *modelTicket) bool { return o == t })
	t.state = fsm.Ended
	m.remember(t.session, t.Ticket, reason, t.token)
	m.emit(event)
}

// remember keeps how a ticket ended, so that a repeat is answered as the first was.
func (m *model) remember(s *modelSession, ticket uint64, reason fsm.Reason, token uint64) {
	s.changed = m.index
	if ticket > s.ackedThrough {
		s.ended[ticket] = fsm.TicketState{Ticket: ticket, State: fsm.Ended, Reason: reason,
			Token: token}
	}
}

// grantUnblocked grants what can be granted after a step's removals, and returns which queues
// moved.
func (m *model) grantUnblocked() {
	var granted []*modelTicket
	for found := true; found; {
		found = false
		for _, t := range m.tickets {
			if t.state == fsm.Waiting && m.grantable(t) {
				m.grant(t)
				granted, found = append(granted, t), true
			}
		}
	}
	slices.SortFunc(granted,
		func(t, u *modelTicket) int { return cmp.Compare(t.enqueued, u.enqueued) })
	for _, t := range granted {
		for _, item := range t.items {
			m.changedQueues[item.Name] = true
		}
		m.emitGranted(t)
	}
	for name, until := range m.delays {
		if until == m.holdOffUntil && m.time < m.holdOffUntil && !m.inUse(name) {
			delete(m.delays, name) // a name that is not there is as closed
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.changedQueues)) {
		if m.exists(name) {
			m.emit(fsm.Event{Kind: fsm.EvQueueChanged, Lock: name})
		}
	}
	clear(m.changedQueues)
}

func (m *model) grant(t *modelTicket) {
	t.state, t.token, t.session.changed = fsm.Granted, m.index, m.index
	if t.request.MaxHold != 0 {
		t.holdUntil = m.time.Add(t.request.MaxHold)
	}
}

func (m *model) emitGranted(t *modelTicket) {
	m.emit(fsm.Event{
		Kind: fsm.EvGranted, TicketRef: t.TicketRef, Token: t.token, HoldUntil: t.holdUntil,
		Items: t.items, Identity: t.session.Identity,
	})
}

// modelUser is a live ticket at one of its locks.
type modelUser struct {
	*modelTicket
	item fsm.Item
}

// users are the holders and waiters of a lock, by enqueued.
func (m *model) users(name string) iter.Seq[modelUser] {
	return func(yield func(modelUser) bool) {
		for _, t := range m.tickets {
			for _, item := range t.items {
				if item.Name == name && !yield(modelUser{t, item}) {
					return
				}
			}
		}
	}
}

// exists reports whether there is such a lock: it has a holder, a waiter or a delay.
func (m *model) exists(name string) bool { return m.inUse(name) || m.delays[name] != 0 }

func (m *model) inUse(name string) bool {
	for range m.users(name) {
		return true
	}
	return false
}

// grantable is the queue rule.
func (m *model) grantable(t *modelTicket) bool { return len(m.blockers(t)) == 0 }

// blockers is everything that stands before a ticket at each of its locks.
func (m *model) blockers(t *modelTicket) (found []fsm.Blocker) {
	for _, item := range t.items {
		until := m.delays[item.Name]
		if m.time < m.holdOffUntil {
			until = max(until, m.holdOffUntil)
		}
		switch {
		case m.time < m.holdOffUntil:
			found = append(found, fsm.Blocker{Name: item.Name, By: fsm.ByHoldOff, Until: until})
		case until != 0:
			found = append(found, fsm.Blocker{Name: item.Name, By: fsm.ByDelay, Until: until})
		}
		permits := item.Permits
		for u := range m.users(item.Name) {
			if u.state == fsm.Granted {
				permits += u.item.Permits
			}
		}
		for u := range m.users(item.Name) {
			b := fsm.Blocker{Name: item.Name, TicketRef: u.TicketRef, Token: u.token,
				Owner: u.request.Owner}
			if u.state == fsm.Granted && (permits > item.Of || conflict(item, u.item)) {
				b.By = fsm.ByHolder
				found = append(found, b)
			}
			if u.state == fsm.Waiting && u.enqueued < t.enqueued {
				b.By = fsm.ByWaiter
				found = append(found, b)
			}
		}
	}
	return found
}

// conflict reports that two items of one lock don't fit beside each other even when alone.
func conflict(a, b fsm.Item) bool {
	if a.Mode == fsm.Permits {
		return a.Permits+b.Permits > a.Of
	}
	return a.Mode == fsm.Exclusive || b.Mode == fsm.Exclusive
}
