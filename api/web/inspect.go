package web

import (
	"context"

	"zamok/api/wire"
	"zamok/api/zamokpb"
)

// stamp is a reading of the replicated clock.
type stamp struct {
	Term  number   `json:"term"`
	Index number   `json:"index"`
	Time  duration `json:"time" doc:"cluster time: how long the cluster has had a leader"`
}

func newStamp(s *zamokpb.Stamp) stamp {
	return stamp{number(s.GetTerm()), number(s.GetIndex()), duration(s.GetTime())}
}

// left is how far ahead a moment of cluster time is; 0: there is none, or it has passed.
func left(until, now int64) duration { return rounded(max(until-now, 0)) }

// since is how long ago a moment of cluster time was; 0: it is not known.
func since(at, now int64) duration {
	if at == 0 {
		return 0
	}
	return left(now, at)
}

// lockBrief is a lock in a list.
type lockBrief struct {
	Name     string   `json:"name"`
	Kind     string   `json:"kind" doc:"mutex or permits"`
	Of       uint32   `json:"of,omitempty" doc:"the permits there are"`
	Holders  uint32   `json:"holders"`
	Waiters  uint32   `json:"waiters"`
	Reserved duration `json:"reserved_left,omitempty" doc:"of a first holder without a stream, such as a reservation or a lock over HTTP: its lease"`
	Delay    duration `json:"delay,omitempty" doc:"how long it stays closed after a loss"`
	HoldOff  duration `json:"hold_off,omitempty" doc:"how long no lock is granted, after a restore"`
}

func newLockBrief(l *zamokpb.LockSummary, now int64) lockBrief {
	b := lockBrief{Name: l.Name, Kind: "mutex", Of: l.Limit, Holders: l.Holders, Waiters: l.Waiters,
		Reserved: left(l.ReservedUntil, now), Delay: left(l.DelayedUntil, now), HoldOff: left(l.HoldOffUntil, now)}
	if l.Limit > 0 {
		b.Kind = "permits"
	}
	return b
}

// blocker is a reason for which an acquisition waits.
type blocker struct {
	Name    string   `json:"name"`
	By      string   `json:"by" doc:"holder, waiter, delay or hold_off"`
	Session number   `json:"session,omitempty"`
	Ticket  number   `json:"ticket,omitempty"`
	Token   number   `json:"token,omitempty"`
	Owner   string   `json:"owner,omitempty"`
	Label   string   `json:"label,omitempty"`
	Meta    string   `json:"meta,omitempty" doc:"the first 128 bytes"`
	Left    duration `json:"left,omitempty" doc:"of a delay or hold-off"`
}

func newBlocker(b *zamokpb.Blocker) blocker {
	return blocker{b.Name, word(b.By, "BLOCKED_BY_"), number(b.Session), number(b.Ticket), number(b.Token), b.Owner, b.Label,
		text(b.Metadata), rounded(b.Left)}
}

// ticket is one acquisition, as a lock shows it.
type ticket struct {
	Session   number    `json:"session"`
	Ticket    number    `json:"ticket"`
	Token     number    `json:"token,omitempty"`
	Label     string    `json:"label,omitempty"`
	Identity  string    `json:"identity,omitempty"`
	Owner     string    `json:"owner,omitempty"`
	Meta      string    `json:"meta,omitempty"`
	Waited    duration  `json:"waited,omitempty" doc:"how long it waits, or waited"`
	Held      duration  `json:"held,omitempty" doc:"how long it has been held"`
	LeaseLeft duration  `json:"lease_left,omitempty" doc:"if it is not renewed"`
	Stream    bool      `json:"stream,omitempty" doc:"its session has had a stream of the gRPC protocol; a reservation has none"`
	HoldLeft  duration  `json:"hold_left,omitempty" doc:"of a maximum hold"`
	WaitLeft  duration  `json:"wait_left,omitempty" doc:"of a wait with a limit"`
	Items     []item    `json:"items"`
	Blockers  []blocker `json:"blockers,omitempty" doc:"what it waits for"`
}

func newTicket(t *zamokpb.Ticket, now int64) ticket {
	waited := now
	if t.State.State == zamokpb.State_STATE_GRANTED {
		waited = t.GrantedAt
	}
	return ticket{
		Session: number(t.Session), Ticket: number(t.State.Ticket), Token: number(t.State.Token), Label: t.Label,
		Identity: t.Identity, Owner: t.Owner, Meta: text(t.Metadata), Waited: since(t.EnqueuedAt, waited), Held: since(t.GrantedAt, now),
		LeaseLeft: left(t.LeaseUntil, now), Stream: t.Attached, HoldLeft: left(t.State.HoldUntil, now), WaitLeft: left(t.WaitUntil, now),
		Items: wire.Each(t.Items, newItem), Blockers: wire.Each(t.Blockers, newBlocker),
	}
}

type lockRequest struct {
	Name  string `json:"name"`
	Limit uint32 `json:"limit,omitempty" doc:"how many holders, and waiters, are shown; default 100, at most 200"`
}

// lock is a lock with its holders and waiters.
type lock struct {
	lockBrief
	Holding []ticket `json:"holding"`
	Queue   []ticket `json:"queue" doc:"in the order in which they will be granted"`
	Stamp   stamp    `json:"stamp"`
}

func (h *handler) showLock(ctx context.Context, r *lockRequest) (*lock, error) {
	response, err := ask(ctx, h, h.zamok.Get, &zamokpb.GetRequest{Name: r.Name, Limit: r.Limit})
	if err != nil {
		return nil, err
	}
	now := response.Stamp.GetTime()
	show := func(t *zamokpb.Ticket) ticket { return newTicket(t, now) }
	return &lock{
		lockBrief: newLockBrief(response.Lock, now), Holding: wire.Each(response.Holders, show), Queue: wire.Each(response.Queue, show),
		Stamp: newStamp(response.Stamp),
	}, nil
}

type listRequest struct {
	Prefix string `json:"prefix,omitempty"`
	After  string `json:"after,omitempty" doc:"only names after this one: next of the page before"`
	Limit  uint32 `json:"limit,omitempty" doc:"default and maximum 1000"`
}

// listDefault is how many elements a page has, unless a request asks for fewer.
const listDefault = 1000

type locks struct {
	Locks []lockBrief `json:"locks" doc:"in the order of their names"`
	Next  string      `json:"next,omitempty" doc:"the value of after for the next page; absent: this is the last one"`
	Stamp stamp       `json:"stamp"`
}

func (h *handler) listLocks(ctx context.Context, r *listRequest) (*locks, error) {
	if r.Limit == 0 {
		r.Limit = listDefault
	}
	response, err := ask(ctx, h, h.zamok.List, &zamokpb.ListRequest{Prefix: r.Prefix, After: r.After, Limit: r.Limit})
	if err != nil {
		return nil, err
	}
	answer := &locks{Stamp: newStamp(response.Stamp), Locks: []lockBrief{}}
	for _, l := range response.Locks {
		answer.Locks = append(answer.Locks, newLockBrief(l, response.Stamp.GetTime()))
	}
	if n := len(answer.Locks); n == int(r.Limit) {
		answer.Next = answer.Locks[n-1].Name
	}
	return answer, nil
}

type listSessionsRequest struct {
	After number `json:"after,omitempty" doc:"only ids above this one: next of the page before"`
	Limit uint32 `json:"limit,omitempty" doc:"default and maximum 1000"`
}

type session struct {
	Session   number   `json:"session"`
	Label     string   `json:"label,omitempty"`
	Identity  string   `json:"identity,omitempty"`
	Meta      string   `json:"meta,omitempty"`
	Age       duration `json:"age"`
	TTL       duration `json:"ttl"`
	LeaseLeft duration `json:"lease_left" doc:"if it is not renewed"`
	LockDelay duration `json:"lock_delay,omitempty"`
	Tickets   uint32   `json:"tickets" doc:"how many wait or hold"`
	Stream    bool     `json:"stream" doc:"it has had a stream of the gRPC protocol"`
}

type sessions struct {
	Sessions []session `json:"sessions" doc:"in the order of their ids"`
	Next     number    `json:"next,omitempty" doc:"the value of after for the next page; absent: there are no more"`
	Stamp    stamp     `json:"stamp"`
}

func (h *handler) listSessions(ctx context.Context, r *listSessionsRequest) (*sessions, error) {
	response, err := ask(ctx, h, h.zamok.ListSessions, &zamokpb.ListSessionsRequest{After: uint64(r.After), Limit: r.Limit})
	if err != nil {
		return nil, err
	}
	now := response.Stamp.GetTime()
	answer := &sessions{Stamp: newStamp(response.Stamp), Sessions: []session{}}
	for _, s := range response.Sessions {
		answer.Sessions = append(answer.Sessions, session{
			Session: number(s.Session), Label: s.Settings.Label, Identity: s.Identity, Meta: text(s.Settings.Metadata), Age: since(s.Opened, now),
			TTL: duration(s.Settings.Ttl), LeaseLeft: left(s.Deadline, now), LockDelay: duration(s.Settings.LockDelay), Tickets: s.Tickets, Stream: s.Attached,
		})
		answer.Next = number(s.Session) // an answer may be shorter than its limit
	}
	return answer, nil
}

type checkRequest struct {
	Name    string `json:"name"`
	Token   number `json:"token"`
	Session number `json:"session,omitempty" doc:"needed for shared locks and permits, whose tokens may be shared"`
	Ticket  number `json:"ticket,omitempty" doc:"with a session; absent: the session is the lock's own"`
}

type checked struct {
	Held  bool  `json:"held" doc:"it was held at some moment between request and answer"`
	Stamp stamp `json:"stamp"`
}

func (h *handler) check(ctx context.Context, r *checkRequest) (*checked, error) {
	request := &zamokpb.CheckRequest{Name: r.Name, Token: uint64(r.Token), Session: uint64(r.Session), Ticket: uint64(r.Ticket)}
	if r.Session != 0 {
		request.Ticket = uint64(ticketOf(r.Ticket))
	}
	response, err := ask(ctx, h, h.zamok.Check, request)
	if err != nil {
		return nil, err
	}
	return &checked{response.Held, newStamp(response.Stamp)}, nil
}

// none is a request without fields.
type none struct{}

func (h *handler) now(ctx context.Context, _ *none) (*stamp, error) {
	response, err := ask(ctx, h, h.zamok.Now, &zamokpb.NowRequest{})
	if err != nil {
		return nil, err
	}
	s := newStamp(response.Stamp)
	return &s, nil
}

type member struct {
	ID          string    `json:"id"`
	Client      string    `json:"client,omitempty" doc:"its address for clients"`
	Peer        string    `json:"peer,omitempty" doc:"its address for the other nodes"`
	HTTP        string    `json:"http,omitempty" doc:"its address for HTTP"`
	Version     string    `json:"version,omitempty"`
	Voter       bool      `json:"voter"`
	Leader      bool      `json:"leader"`
	FreeBytes   number    `json:"free_bytes,omitempty" doc:"free space of its data directory"`
	DiskLow     bool      `json:"disk_low,omitempty"`
	Incarnation string    `json:"incarnation" doc:"identifies its data directory"`
	LastContact *duration `json:"last_contact,omitempty" doc:"how long ago it answered the leader"`
	Behind      *number   `json:"behind,omitempty" doc:"how many entries of the log it lacked then"`
}

type members struct {
	Members         []member `json:"members"`
	Leader          string   `json:"leader,omitempty"`
	Cluster         string   `json:"cluster" doc:"the id of the cluster"`
	Stamp           stamp    `json:"stamp"`
	HoldOff         duration `json:"hold_off,omitempty" doc:"how long no lock is granted, after a restore"`
	ElectionTimeout duration `json:"election_timeout"`
	ShortTTLs       number   `json:"short_ttls,omitempty" doc:"how many sessions have a ttl below four election timeouts: most failovers end them"`
}

func (h *handler) members(ctx context.Context, _ *none) (*members, error) {
	response, err := ask(ctx, h, h.admin.Members, &zamokpb.MembersRequest{})
	if err != nil {
		return nil, err
	}
	answer := &members{
		Leader: response.Leader, Cluster: response.Cluster, Stamp: newStamp(response.Stamp), HoldOff: rounded(response.HoldOff),
		ElectionTimeout: duration(response.ElectionTimeout), ShortTTLs: number(response.ShortTtls), Members: []member{},
	}
	for _, m := range response.Members {
		shown := member{
			ID: m.Id, Client: m.Client, Peer: m.Peer, HTTP: m.Http, Version: m.Version, Voter: m.Voter, Leader: m.Leader,
			FreeBytes: number(m.FreeBytes), DiskLow: m.DiskLow, Incarnation: m.Incarnation, Behind: (*number)(m.Behind),
		}
		if m.LastContact != nil {
			shown.LastContact = new(rounded(*m.LastContact))
		}
		answer.Members = append(answer.Members, shown)
	}
	return answer, nil
}

type nodeStatus struct {
	Node     string   `json:"node" doc:"this node's id"`
	Ready    bool     `json:"ready" doc:"this node serves"`
	NotReady string   `json:"not_ready,omitempty" doc:"why it does not"`
	Cluster  *members `json:"cluster,omitempty" doc:"absent: no leader could be asked"`
}

// status says what it can, also if there is no leader.
func (h *handler) status(ctx context.Context, r *none) (*nodeStatus, error) {
	answer := &nodeStatus{Node: h.config.Node, NotReady: h.config.NotReady()}
	answer.Ready = answer.NotReady == ""
	if answer.Ready {
		members, err := h.members(ctx, r)
		if isCode(err, zamokpb.Code_CODE_WRONG_CLUSTER) {
			return nil, err
		}
		answer.Cluster = members
	}
	return answer, nil
}
