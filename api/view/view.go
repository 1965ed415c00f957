package view

import (
	"zamok/api/wire"
	"zamok/api/zamokpb"
)

// Stamp is a reading of the replicated clock.
type Stamp struct {
	Term  Number   `json:"term"`
	Index Number   `json:"index"`
	Time  Duration `json:"time" doc:"cluster time: how long the cluster has had a leader"`
}

// NewStamp shows a stamp.
func NewStamp(s *zamokpb.Stamp) Stamp {
	return Stamp{Number(s.GetTerm()), Number(s.GetIndex()), Duration(s.GetTime())}
}

// LockBrief is a lock in a list.
type LockBrief struct {
	Name         string    `json:"name"`
	Kind         string    `json:"kind" doc:"mutex or permits"`
	Of           uint32    `json:"of,omitempty" doc:"the permits there are"`
	Holders      uint32    `json:"holders"`
	Waiters      uint32    `json:"waiters"`
	ReservedLeft *Duration `json:"reserved_left,omitempty" doc:"of a first holder without a stream, such as a reservation or a lock over HTTP: its lease"`
	Delay        *Duration `json:"delay,omitempty" doc:"how long it stays closed after a loss"`
	HoldOff      *Duration `json:"hold_off,omitempty" doc:"how long no lock is granted, after a restore"`
}

func newLockBrief(l *zamokpb.LockSummary, now int64) LockBrief {
	b := LockBrief{Name: l.GetName(), Kind: "mutex", Of: l.GetOf(), Holders: l.GetHolders(),
		Waiters:      l.GetWaiters(),
		ReservedLeft: left(l.GetReservedUntil(), now), Delay: left(l.GetDelayedUntil(), now),
		HoldOff: left(l.GetHoldOffUntil(), now)}
	if b.Of > 0 {
		b.Kind = "permits"
	}
	return b
}

// Blocker is a reason for which an acquisition waits.
type Blocker struct {
	Name    string   `json:"name"`
	By      string   `json:"by" doc:"holder, waiter, delay or hold_off"`
	Session Number   `json:"session,omitempty"`
	Ticket  Number   `json:"ticket,omitempty"`
	Token   Number   `json:"token,omitempty"`
	Owner   string   `json:"owner,omitempty"`
	Label   string   `json:"label,omitempty"`
	Meta    string   `json:"meta,omitempty" doc:"the first 128 bytes"`
	Left    Duration `json:"left,omitempty" doc:"of a delay or hold-off"`
}

// NewBlocker shows a blocker.
func NewBlocker(b *zamokpb.Blocker) Blocker {
	return Blocker{b.Name, wire.JSONName(b.By), Number(b.Session), Number(b.Ticket),
		Number(b.Token), b.Owner, b.Label,
		meta(b.Meta), rounded(b.Left)}
}

// Ticket is one acquisition, as a lock shows it.
type Ticket struct {
	Session   Number    `json:"session"`
	Ticket    Number    `json:"ticket"`
	Token     Number    `json:"token,omitempty"`
	Label     string    `json:"label,omitempty"`
	Identity  string    `json:"identity,omitempty"`
	Owner     string    `json:"owner,omitempty"`
	Meta      string    `json:"meta,omitempty"`
	Waited    *Duration `json:"waited,omitempty" doc:"how long it waits, or waited; absent: not known"`
	Held      *Duration `json:"held,omitempty" doc:"how long it has been held; absent: it waits, or not known"`
	LeaseLeft Duration  `json:"lease_left" doc:"if it is not renewed"`
	Reserved  bool      `json:"reserved,omitempty" doc:"its session has never had a stream of the gRPC protocol, as that of a reservation or of a lock over HTTP"`
	HoldLeft  *Duration `json:"hold_left,omitempty" doc:"of a maximum hold; absent: it has none"`
	WaitLeft  *Duration `json:"wait_left,omitempty" doc:"of a wait with a limit; absent: it has none"`
	Items     []Item    `json:"items"`
	Blockers  []Blocker `json:"blockers,omitempty" doc:"what it waits for"`
}

func newTicket(t *zamokpb.Ticket, now int64) Ticket {
	state, waited := t.GetState(), now
	if state.GetState() == zamokpb.State_STATE_GRANTED {
		waited = t.GrantedAt
	}
	return Ticket{
		Session: Number(t.Session), Ticket: Number(state.GetTicket()),
		Token: Number(state.GetToken()), Label: t.Label,
		Identity: t.Identity, Owner: t.Owner, Meta: meta(t.Meta),
		Waited: since(t.EnqueuedAt, waited), Held: since(t.GrantedAt, now),
		LeaseLeft: rounded(max(t.LeaseUntil-now, 0)), Reserved: t.Reserved,
		HoldLeft: left(state.GetHoldUntil(), now), WaitLeft: left(t.WaitUntil, now),
		Items: wire.Each(t.Items, newItem), Blockers: wire.Each(t.Blockers, NewBlocker),
	}
}

// Lock is a lock with its holders and waiters.
type Lock struct {
	LockBrief
	Holding []Ticket `json:"holding"`
	Queue   []Ticket `json:"queue" doc:"in the order in which they will be granted"`
	Stamp   Stamp    `json:"stamp"`
}

// NewLock shows a lock.
func NewLock(r *zamokpb.GetResponse) *Lock {
	now := r.GetStamp().GetTime()
	ticket := func(t *zamokpb.Ticket) Ticket { return newTicket(t, now) }
	return &Lock{newLockBrief(r.GetLock(), now), wire.Each(r.GetHolders(), ticket),
		wire.Each(r.GetQueue(), ticket), NewStamp(r.GetStamp())}
}

// Locks is a page of a list of locks.
type Locks struct {
	Locks []LockBrief `json:"locks" doc:"in the order of their names"`
	Next  string      `json:"next,omitempty" doc:"the value of after for the next page; absent: this is the last one"`
	Stamp Stamp       `json:"stamp"`
}

// NewLocks shows locks as of a stamp.
func NewLocks(list []*zamokpb.LockSummary, at *zamokpb.Stamp, more bool) *Locks {
	brief := func(l *zamokpb.LockSummary) LockBrief { return newLockBrief(l, at.GetTime()) }
	page := &Locks{Locks: wire.Each(list, brief), Stamp: NewStamp(at)}
	if more {
		page.Next = list[len(list)-1].Name
	}
	return page
}

// Session is a session in a list.
type Session struct {
	Session   Number   `json:"session"`
	Label     string   `json:"label,omitempty"`
	Identity  string   `json:"identity,omitempty"`
	Meta      string   `json:"meta,omitempty"`
	Age       Duration `json:"age"`
	TTL       Duration `json:"ttl"`
	LeaseLeft Duration `json:"lease_left" doc:"if it is not renewed"`
	LockDelay Duration `json:"lock_delay,omitempty"`
	Tickets   uint32   `json:"tickets" doc:"how many wait or hold"`
	Reserved  bool     `json:"reserved,omitempty" doc:"it has never had a stream of the gRPC protocol, as that of a reservation or of a lock over HTTP"`
}

// Sessions is a page of a list of sessions.
type Sessions struct {
	Sessions []Session `json:"sessions" doc:"in the order of their ids"`
	Next     Number    `json:"next,omitempty" doc:"the value of after for the next page; absent: there are no more"`
	Stamp    Stamp     `json:"stamp"`
}

// NewSessions shows sessions as of a stamp.
func NewSessions(list []*zamokpb.SessionInfo, at *zamokpb.Stamp, more bool) *Sessions {
	now := at.GetTime()
	page := &Sessions{Stamp: NewStamp(at),
		Sessions: wire.Each(list, func(s *zamokpb.SessionInfo) Session {
			settings := s.GetSettings()
			return Session{
				Session: Number(s.Session), Label: settings.GetLabel(), Identity: s.Identity,
				Meta: meta(settings.GetMeta()),
				Age:  rounded(max(now-s.Opened, 0)), TTL: Duration(settings.GetTtl()),
				LeaseLeft: rounded(max(s.LeaseUntil-now, 0)),
				LockDelay: Duration(settings.GetLockDelay()), Tickets: s.Tickets,
				Reserved: s.Reserved,
			}
		})}
	if more {
		page.Next = Number(list[len(list)-1].Session)
	}
	return page
}

// Checked is whether a grant is held.
type Checked struct {
	Held  bool  `json:"held" doc:"it was held at some moment between request and answer"`
	Stamp Stamp `json:"stamp"`
}

// NewChecked shows whether a grant is held.
func NewChecked(r *zamokpb.CheckResponse) *Checked {
	return &Checked{r.GetHeld(), NewStamp(r.GetStamp())}
}

// Member is a node of the cluster.
type Member struct {
	ID          string    `json:"id"`
	Client      string    `json:"client,omitempty" doc:"its address for clients"`
	Peer        string    `json:"peer,omitempty" doc:"its address for the other nodes"`
	HTTP        string    `json:"http,omitempty" doc:"its address for HTTP"`
	Version     string    `json:"version,omitempty"`
	Voter       bool      `json:"voter"`
	Leader      bool      `json:"leader"`
	FreeBytes   Number    `json:"free_bytes,omitempty" doc:"free space of its data directory"`
	DiskLow     bool      `json:"disk_low,omitempty"`
	Incarnation string    `json:"incarnation" doc:"identifies its data directory"`
	LastContact *Duration `json:"last_contact,omitempty" doc:"how long ago it answered the leader"`
	Behind      *Number   `json:"behind,omitempty" doc:"how many entries of the log it lacked then"`
}

func newMember(m *zamokpb.Member) Member {
	shown := Member{
		ID: m.Id, Client: m.Client, Peer: m.Peer, HTTP: m.Http, Version: m.Version, Voter: m.Voter,
		Leader:    m.Leader,
		FreeBytes: Number(m.FreeBytes), DiskLow: m.DiskLow, Incarnation: m.Incarnation,
		Behind: (*Number)(m.Behind),
	}
	if m.LastContact != nil {
		shown.LastContact = new(rounded(*m.LastContact))
	}
	return shown
}

// Members is the cluster with its nodes.
type Members struct {
	Members         []Member `json:"members"`
	Leader          string   `json:"leader,omitempty"`
	Cluster         string   `json:"cluster" doc:"the id of the cluster"`
	Stamp           Stamp    `json:"stamp"`
	HoldOff         Duration `json:"hold_off,omitempty" doc:"how long no lock is granted, after a restore"`
	ElectionTimeout Duration `json:"election_timeout"`
	ShortTTLs       Number   `json:"short_ttls,omitempty" doc:"how many sessions have a ttl below four election timeouts: most failovers end them"`
}

// NewMembers shows the cluster with its nodes.
func NewMembers(r *zamokpb.MembersResponse) *Members {
	return &Members{
		Members: wire.Each(r.GetMembers(), newMember), Leader: r.GetLeader(),
		Cluster: r.GetCluster(), Stamp: NewStamp(r.GetStamp()),
		HoldOff: rounded(r.GetHoldOff()), ElectionTimeout: Duration(r.GetElectionTimeout()),
		ShortTTLs: Number(r.GetShortTtls()),
	}
}

// Event is a change of an acquisition, or the end of a session.
type Event struct {
	Index   Number `json:"index"`
	Session Number `json:"session"`
	Ticket  Number `json:"ticket,omitempty"`
	Token   Number `json:"token,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Text    string `json:"text,omitempty" doc:"the reason that an operator gave"`
	Label   string `json:"label,omitempty"`
	Items   []Item `json:"items,omitempty"`
}

// NewEvent shows an event.
func NewEvent(e *zamokpb.LockEvent) Event {
	return Event{
		Index: Number(e.Index), Session: Number(e.Session), Ticket: Number(e.Ticket),
		Token:  Number(e.Token),
		Reason: wire.JSONName(e.Reason), Text: e.Text, Label: e.Label,
		Items: wire.Each(e.Items, newItem),
	}
}

// Ended is how an acquisition or a session ended.
type Ended struct {
	State  string `json:"state" doc:"ended"`
	Reason string `json:"reason,omitempty" doc:"why; dropped or closed: by this request, or one before it"`
	Token  Number `json:"token,omitempty" doc:"the token, if it had been granted"`
}

// TicketRef names an acquisition.
type TicketRef struct {
	Session Number `json:"session"`
	Ticket  Number `json:"ticket"`
}

// Forced is what a forced release has ended.
type Forced struct {
	Ended []TicketRef `json:"ended" doc:"the first 1024 acquisitions that were ended"`
	More  uint32      `json:"more,omitempty" doc:"how many others were"`
}

// NewForced shows what a forced release has ended.
func NewForced(r *zamokpb.ForceReleaseResponse) *Forced {
	return &Forced{More: r.GetMore(),
		Ended: wire.Each(r.GetEnded(), func(t *zamokpb.TicketRef) TicketRef {
			return TicketRef{Number(t.Session), Number(t.Ticket)}
		})}
}
