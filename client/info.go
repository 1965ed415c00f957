package client

import (
	"fmt"
	"time"

	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/session/visible"
)

// Stamp is where the replicated clock of the cluster stands: ordered by term, then index. Time is for how
// long the cluster has had a leader.
type Stamp struct {
	Term, Index uint64
	Time        time.Duration
}

// Before orders stamps.
func (s Stamp) Before(t Stamp) bool {
	return clock.Stamp{Term: s.Term, Index: s.Index}.Before(clock.Stamp{Term: t.Term, Index: t.Index})
}

// State is where an acquisition is on its way.
type State uint8

const (
	Waiting State = 1 + iota
	Granted
	Ended
)

func (s State) String() string {
	return [...]string{"unknown", "waiting", "granted", "ended"}[min(s, Ended)]
}

// Mode is how a lock is held.
type Mode uint8

const (
	ModeExclusive Mode = 1 + iota
	ModeShared
	ModePermits
)

func (m Mode) String() string {
	return [...]string{"unknown", "exclusive", "shared", "permits"}[min(m, ModePermits)]
}

// Mode, Permits and Of say how the item is asked for.
func (i Item) Mode() Mode      { return Mode(i.mode) }
func (i Item) Permits() uint32 { return i.permits }
func (i Item) Limit() uint32   { return i.limit }

// BlockedBy is the kind of a Blocker.
type BlockedBy uint8

const (
	ByHolder  BlockedBy = 1 + iota // holds what does not fit beside
	ByWaiter                       // waits ahead
	ByDelay                        // the lock is closed until a time
	ByHoldOff                      // a backup was restored, and no lock is granted until a time
)

// Blocker is one thing that stands before an acquisition at one of its locks.
type Blocker struct {
	Name            string
	By              BlockedBy
	Session, Ticket uint64
	Token           Token
	Owner           string
	Until           time.Duration // cluster time at which a delay, or the hold-off after a restore, ends
	Left            time.Duration // how much of that was left when the cluster said so
	Label           string        // of its session
	Metadata        []byte
}

func (b Blocker) String() string {
	who := fmt.Sprintf("session %d", b.Session)
	if b.Label != "" {
		who += " (" + visible.Word(b.Label) + ")"
	}
	name := visible.Quote(b.Name)
	switch b.By {
	case ByDelay:
		return name + " is closed for a delay"
	case ByHoldOff:
		return fmt.Sprintf("no lock is granted for another %v: a backup was restored", b.Left.Round(time.Second))
	case ByWaiter:
		return fmt.Sprintf("%s waits ahead for %s", who, name)
	}
	return fmt.Sprintf("%s is held by %s", name, who)
}

// Link is one ticket of a deadlock: it waits at Name for the next link, or is held by an owner who waits at
// the next.
type Link struct {
	Session, Ticket uint64
	Owner           string
	Waits           bool
	Name            string
}

// LockInfo is a lock in use.
type LockInfo struct {
	Name             string
	Limit            uint32 // the limit of its permits; 0 = a mutex
	Holders, Waiters int
	DelayedUntil     time.Duration // cluster time; 0 = no delay
	// HoldOffUntil is the cluster time before which no lock is granted, this one or any other, because a backup was
	// restored; 0 = no such thing.
	HoldOffUntil time.Duration
	// ReservedUntil is the cluster time at which the lease of the first holder ends, if its session has never had a
	// stream, as that of a Reservation; otherwise 0.
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
	Enqueued        uint64        // the index at which it was asked for
	Owner           string
	Metadata        []byte
	Items           []Item
	Label, Identity string // of its session
	Blockers        []Blocker

	// Cluster times, to a hundredth of their age: when it was asked for and granted; 0 = not, or longer
	// ago than the node that answered remembers.
	EnqueuedAt, GrantedAt time.Duration
	LeaseUntil            time.Duration // cluster time at which its session ends if it is not renewed
	Attached              bool          // its session has had a stream: it is no Reservation
}

// SessionInfo is a session.
type SessionInfo struct {
	Session         uint64
	TTL             time.Duration
	Label, Identity string
	Metadata        []byte
	LockDelay       time.Duration
	Deadline        time.Duration // cluster time at which it ends if it is not renewed
	Attached        bool          // it has had a stream
	Opened          time.Duration // cluster time
	Tickets         int           // acquisitions that wait or hold
}

func sessionInfo(i *zamokpb.SessionInfo) SessionInfo {
	settings := i.GetSettings()
	return SessionInfo{
		Session: i.GetSession(), TTL: time.Duration(settings.GetTtl()), Label: settings.GetLabel(),
		Metadata: settings.GetMetadata(), LockDelay: time.Duration(settings.GetLockDelay()),
		Identity: i.GetIdentity(), Deadline: time.Duration(i.GetDeadline()), Attached: i.GetAttached(),
		Opened: time.Duration(i.GetOpened()), Tickets: int(i.GetTickets()),
	}
}

// ClusterInfo is the cluster as a whole.
type ClusterInfo struct {
	ID string
	// HoldOff is for how long no lock is granted yet, because a backup was restored: until all leases of the old
	// cluster are over. 0 = no such thing.
	HoldOff time.Duration
	// ElectionTimeout is after how long without a leader nodes elect another.
	ElectionTimeout time.Duration
	// ShortTTLs is how many sessions have a ttl below four election timeouts: most failovers end them.
	ShortTTLs int
}

// Member is a node of the cluster.
type Member struct {
	ID                 string
	Incarnation        string // of its data directory: a node that lost its data comes back with another one
	Client, Peer, HTTP string // addresses
	Version            string
	Voter, Leader      bool
	FreeBytes          uint64 // on the disk of its data directory; 0 without DiskLow = not known
	DiskLow            bool
	// LastContact is how long ago the leader sent what the node answered last, or since when it leads, if the node has
	// answered nothing since; of the leader itself 0.
	LastContact time.Duration
	// Behind is how many entries of the leader's log it lacked then; nil = it is the leader, or has answered nothing
	// since that leads.
	Behind *uint64
}

func stamp(s *zamokpb.Stamp) Stamp {
	return Stamp{Term: s.GetTerm(), Index: s.GetIndex(), Time: time.Duration(s.GetTime())}
}

// each turns a list of the wire into one of ours.
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
		Token: Token(b.GetToken()), Owner: b.GetOwner(), Until: time.Duration(b.GetUntil()), Left: time.Duration(b.GetLeft()),
		Label: b.GetLabel(), Metadata: b.GetMetadata(),
	}
}

func itemInfo(i *zamokpb.Item) Item {
	return Item{name: i.GetName(), mode: i.GetMode(), permits: i.GetPermits(), limit: i.GetLimit()}
}

func ticketInfo(t *zamokpb.Ticket) TicketInfo {
	state := t.GetState()
	return TicketInfo{
		Session: t.GetSession(), Ticket: state.GetTicket(), State: State(state.GetState()), Token: Token(state.GetToken()),
		HoldUntil: time.Duration(state.GetHoldUntil()), WaitUntil: time.Duration(t.GetWaitUntil()),
		Enqueued: t.GetEnqueued(), EnqueuedAt: time.Duration(t.GetEnqueuedAt()), GrantedAt: time.Duration(t.GetGrantedAt()),
		Owner: t.GetOwner(), Metadata: t.GetMetadata(), Label: t.GetLabel(), Identity: t.GetIdentity(),
		LeaseUntil: time.Duration(t.GetLeaseUntil()), Attached: t.GetAttached(),
		Items: each(t.GetItems(), itemInfo), Blockers: each(t.GetBlockers(), blocker),
	}
}

func lockInfo(l *zamokpb.LockSummary) LockInfo {
	return LockInfo{Name: l.GetName(), Limit: l.GetLimit(), Holders: int(l.GetHolders()), Waiters: int(l.GetWaiters()),
		DelayedUntil: time.Duration(l.GetDelayedUntil()), HoldOffUntil: time.Duration(l.GetHoldOffUntil()),
		ReservedUntil: time.Duration(l.GetReservedUntil())}
}
