package client

import (
	"context"
	"fmt"
	"time"

	"zamok/api/visible"
	"zamok/api/zamokpb"
	"zamok/client/call"
	"zamok/clock"
)

// Stamp is a reading of the cluster's replicated clock. Stamps are ordered by term, then index.
// Time is how long the cluster has had a leader.
type Stamp struct {
	Term, Index uint64
	Time        time.Duration
}

// Before orders stamps.
func (s Stamp) Before(t Stamp) bool {
	return clock.Stamp{Term: s.Term, Index: s.Index}.Before(
		clock.Stamp{Term: t.Term, Index: t.Index})
}

// State is the state of an acquisition.
type State uint8

const (
	Waiting State = 1 + iota
	Granted
	Ended
)

func (s State) String() string {
	return [...]string{"unknown", "waiting", "granted", "ended"}[min(s, Ended)]
}

// BlockedBy is the kind of a Blocker.
type BlockedBy uint8

const (
	ByHolder  BlockedBy = 1 + iota // holds the lock in a mode that excludes the acquisition
	ByWaiter                       // waits ahead
	ByDelay                        // the lock is closed until a time
	ByHoldOff                      // a backup was restored, and no lock is granted until a time
)

// Blocker is one reason for which an acquisition has to wait at one of its locks.
type Blocker struct {
	Name            string
	By              BlockedBy
	Session, Ticket uint64
	Token           Token
	Owner           string
	// cluster time at which a delay, or the hold-off after a restore, ends
	Until time.Duration
	Left  time.Duration // the time to Until when the cluster answered
	Label string        // of its session
	Meta  []byte
}

// String names the lock and what blocks it: `"stock" is held by session 7 (kim@db7)`.
func (b Blocker) String() string {
	switch b.By {
	case ByHoldOff:
		return b.Cause()
	case ByWaiter:
		return b.Cause() + " for " + visible.Quote(b.Name)
	}
	return visible.Quote(b.Name) + " is " + b.Cause()
}

// Cause is String without the name of the lock: "held by session 7 (kim@db7)".
func (b Blocker) Cause() string {
	session := fmt.Sprintf("session %d", b.Session)
	if b.Label != "" {
		session += " (" + visible.Word(b.Label) + ")"
	}
	switch b.By {
	case ByDelay:
		return "closed for a delay"
	case ByHoldOff:
		return fmt.Sprintf("no lock is granted for another %v: a backup was restored",
			b.Left.Round(time.Second))
	case ByWaiter:
		return session + " waits ahead"
	}
	return "held by " + session
}

// Link is one ticket of a deadlock. It waits at Name for the next link, or it holds Name, and its
// owner waits at the next link.
type Link struct {
	Session, Ticket uint64
	Owner           string
	Waits           bool
	Name            string
}

// LockInfo is a lock in use.
type LockInfo struct {
	Name             string
	Of               uint32 // how many permits it has; 0 = a mutex
	Holders, Waiters int
	DelayedUntil     time.Duration // cluster time; 0 = no delay
	// HoldOffUntil is the cluster time before which no lock at all is granted, because a backup was
	// restored; 0 = not restored.
	HoldOffUntil time.Duration
	// ReservedUntil is the cluster time at which the lease of the first holder ends, if its session
	// has never had a stream: that is the session of a Reservation. Otherwise 0.
	ReservedUntil time.Duration
}

// LockDetail is a lock with its holders and waiters, up to a limit.
type LockDetail struct {
	LockInfo
	Held  []TicketInfo
	Queue []TicketInfo // the first is next
	Stamp Stamp
}

// TicketInfo is one acquisition.
type TicketInfo struct {
	Session, Ticket uint64
	State           State
	Token           Token
	HoldUntil       time.Duration // cluster time; 0 = without limit
	WaitUntil       time.Duration // cluster time; 0 = without limit
	Enqueued        uint64        // the index at which it was requested
	Owner           string
	Meta            []byte
	Items           []Item
	Label, Identity string // of its session
	Blockers        []Blocker

	// Cluster times of the request and of the grant, to a hundredth of their age; 0 = none, or
	// longer ago than the node that answered remembers.
	EnqueuedAt, GrantedAt time.Duration
	// cluster time at which its session ends if it is not renewed
	LeaseUntil time.Duration
	// its session has never had a stream, as that of a Reservation
	Reserved bool
}

// Get reads a lock with its holders and waiters, in order: at most limit of each, up to 200, or 100
// if limit is 0.
func (c *Client) Get(ctx context.Context, name string, limit int) (*LockDetail, error) {
	request := &zamokpb.GetRequest{Name: name, Limit: uint32(max(limit, 0))}
	r, _, err := call.Leader(ctx, c.Calls(), call.Reads, call.Node.Get, request)
	if err != nil {
		return nil, err
	}
	return &LockDetail{
		LockInfo: lockInfo(r.GetLock()), Held: each(r.GetHolders(), ticketInfo),
		Queue: each(r.GetQueue(), ticketInfo), Stamp: stamp(r.GetStamp()),
	}, nil
}

// List lists locks in use whose names begin with prefix and come after `after`, in order: at most
// limit, or 1000 if that is 0. The stamp's index is where a Watch continues.
func (c *Client) List(ctx context.Context, prefix, after string,
	limit int) ([]LockInfo, Stamp, error) {
	request := &zamokpb.ListRequest{Prefix: prefix, After: after, Limit: uint32(max(limit, 0))}
	r, _, err := call.Leader(ctx, c.Calls(), call.Reads, call.Node.List, request)
	return each(r.GetLocks(), lockInfo), stamp(r.GetStamp()), err
}

func stamp(s *zamokpb.Stamp) Stamp {
	return Stamp{Term: s.GetTerm(), Index: s.GetIndex(), Time: time.Duration(s.GetTime())}
}

// each converts every element of a list.
func each[P, T any](list []P, f func(P) T) []T {
	if len(list) == 0 {
		return nil
	}
	out := make([]T, len(list))
	for i, p := range list {
		out[i] = f(p)
	}
	return out
}

func blocker(b *zamokpb.Blocker) Blocker {
	return Blocker{
		Name: b.GetName(), By: BlockedBy(b.GetBy()), Session: b.GetSession(), Ticket: b.GetTicket(),
		Token: Token(b.GetToken()), Owner: b.GetOwner(), Until: time.Duration(b.GetUntil()),
		Left:  time.Duration(b.GetLeft()),
		Label: b.GetLabel(), Meta: b.GetMeta(),
	}
}

func ticketInfo(t *zamokpb.Ticket) TicketInfo {
	state := t.GetState()
	return TicketInfo{
		Session: t.GetSession(), Ticket: state.GetTicket(), State: State(state.GetState()),
		Token:     Token(state.GetToken()),
		HoldUntil: time.Duration(state.GetHoldUntil()), WaitUntil: time.Duration(t.GetWaitUntil()),
		Enqueued: t.GetEnqueued(), EnqueuedAt: time.Duration(t.GetEnqueuedAt()),
		GrantedAt: time.Duration(t.GetGrantedAt()),
		Owner:     t.GetOwner(), Meta: t.GetMeta(), Label: t.GetLabel(), Identity: t.GetIdentity(),
		LeaseUntil: time.Duration(t.GetLeaseUntil()), Reserved: t.GetReserved(),
		Items: each(t.GetItems(), itemInfo), Blockers: each(t.GetBlockers(), blocker),
	}
}

func lockInfo(l *zamokpb.LockSummary) LockInfo {
	return LockInfo{Name: l.GetName(), Of: l.GetOf(), Holders: int(l.GetHolders()),
		Waiters:       int(l.GetWaiters()),
		DelayedUntil:  time.Duration(l.GetDelayedUntil()),
		HoldOffUntil:  time.Duration(l.GetHoldOffUntil()),
		ReservedUntil: time.Duration(l.GetReservedUntil())}
}
