package fsm

import (
	"cmp"

	"zamok/clock"
	"zamok/session"
)

// Applied is what one entry did. It shares nothing with the state machine that changes later.
type Applied struct {
	// Index is the one that the entry's own step took; its commands follow it.
	Index uint64
	// Stamp and Time are the state machine's after the entry.
	Stamp clock.Stamp
	Time  clock.Time
	// Refused is OK, or OtherVersion: then the entry took its index and did nothing else (its term
	// has begun, though), and there are no Results.
	Refused Code
	// Results has one for each command, in order.
	Results []Result
	// Unrenewed are those of the entry's renewals whose session is not alive.
	Unrenewed []session.ID
	// Events are what happened, in order.
	Events []Event
}

// Code is the outcome of a command. Every code but OK means that the command itself changed
// nothing, except that its acknowledged-through was taken and a refused ticket is remembered as
// ended.
type Code uint8

const (
	OK Code = iota
	// Invalid: a field is out of its limits; Detail.Field names it.
	Invalid
	// NoSession: the session is not alive. Reason is Restored if it was of the history before. Of
	// an OpenSession: what its secret has opened is remembered, and Reason is how that ended.
	NoSession
	// WrongSecret: the hash is not the session's.
	WrongSecret
	// NotAcquired: granting would have to wait, and the ticket would not. Detail.Blockers.
	NotAcquired
	// Deadlock: waiting would close the cycle Detail.Cycle. If a timed wait is on it, it may end by
	// itself.
	Deadlock
	// OwnerWaits: the ticket's owner waits already; Detail.Blockers names that ticket.
	OwnerWaits
	// LockKindMismatch: the name Detail.Field is in use as another kind of lock, with Detail.Of
	// permits (0: a mutex).
	LockKindMismatch
	// LimitExceeded: Detail.Field names the limit of limits.go that was met, or the quota:
	// total_sessions, total_tickets, total_bytes, identity_sessions, identity_tickets or
	// identity_bytes. A repeated answer has no Detail.
	LimitExceeded
	// NotHeld: the ticket is not granted, or has nothing to downgrade.
	NotHeld
	// TicketEnded: the ticket ended; Reason is why, and 0 that it is not remembered, because it is
	// at or below the acknowledged-through.
	TicketEnded
	// Superseded: an Attach with a higher number, or with the same one, took effect before.
	Superseded
	// OtherVersion: encoded for another version than the state machine's; encode again.
	OtherVersion
)

// Result answers one command.
type Result struct {
	Index uint64 // the command's
	Code  Code
	// State, Reason, Token and HoldUntil are those of the ticket of Acquire, Drop, DropUnrenewed
	// and Downgrade after the command. State 0: the state machine has never seen it.
	State     State
	Reason    Reason
	Token     uint64
	HoldUntil clock.Time // 0 = no maximum
	// Session and TTL are set for OpenSession, Attach, Acquire, Drop and Downgrade of a living
	// session, unless they are Invalid or have a WrongSecret. The command renewed it: its lease
	// ends at Applied.Time + TTL or later. TTL alone is set for an OpenSession that is Invalid
	// because its ttl is longer than the longest, which TTL is then.
	Session session.ID
	TTL     clock.Span
	// Detail is set where the code, or ForceRelease, has more.
	Detail *Detail
}

// Detail is what a result has beside its code.
type Detail struct {
	Field    string
	Of       uint32
	Blockers []Blocker
	// Cycle spells out a deadlock, link by link; of a long one, More links are left out in the
	// middle.
	Cycle []Link
	More  int
	// Ended are the tickets that a ForceRelease ended, the first EndedMax of them; there were More.
	Ended []TicketRef
}

// TicketRef names a ticket.
type TicketRef struct {
	Session session.ID
	Ticket  uint64 // the session's own number for it
}

func (r TicketRef) compare(o TicketRef) int {
	if c := cmp.Compare(r.Session, o.Session); c != 0 {
		return c
	}
	return cmp.Compare(r.Ticket, o.Ticket)
}

// Blocker is one thing that blocks a ticket at one of its locks.
type Blocker struct {
	Name string
	By   BlockedBy
	// TicketRef, Token and Owner are those of the holder or of the waiter ahead.
	TicketRef
	Token uint64
	Owner string
	// Until is when a delay, or the hold-off after a restore, ends.
	Until clock.Time
}

// BlockedBy is the kind of a Blocker.
type BlockedBy uint8

const (
	ByHolder  BlockedBy = 1 + iota // holds something incompatible
	ByWaiter                       // is ahead in the queue
	ByDelay                        // the lock is closed until a time
	ByHoldOff                      // a backup was restored, and nothing is granted until a time
)

// Link is one ticket of a chain of waiting. A waiting ticket waits at Name for the next link. A
// granted one is held by an Owner, which also owns the next link and waits there; Name is then
// the lock that the link before wanted from it.
type Link struct {
	TicketRef
	Owner string
	State State
	Name  string
}

// State is the state of a ticket. Of two reports the later state wins.
type State uint8

const (
	Waiting State = 1 + iota
	Granted
	Ended
)

// Reason is why a ticket, or a session, ended.
type Reason uint8

// The numbers are part of the formats: never reuse one.
const (
	Dropped Reason = 1 + iota // its client dropped the ticket
	Closed                    // its client closed the session
	Expired                   // the lease ended
	// the stream broke and did not come back in time: release on disconnect
	Disconnected
	ExpiredByOperator // an operator expired the session
	ForceReleased     // an operator force-released the lock
	MaxHoldExceeded   // the maximum hold ended
	WaitTimeout       // the wait ended
	TryFailed         // it would not wait: Code NotAcquired
	Deadlocked        // Code Deadlock
	OwnerBusy         // Code OwnerWaits
	KindMismatch      // Code LockKindMismatch
	TooMany           // Code LimitExceeded
	Restored          // a backup was restored
	ReasonCount       // one more than the last
)

// code is the answer to a repeated Acquire of a ticket that ended for this reason: the same as the
// first answer.
func (w Reason) code() Code {
	codes := [ReasonCount]Code{
		TryFailed: NotAcquired, Deadlocked: Deadlock, OwnerBusy: OwnerWaits,
		KindMismatch: LockKindMismatch, TooMany: LimitExceeded,
	}
	return cmp.Or(codes[w], TicketEnded)
}

// asked reports whether the holder itself asked for this end. Every other end has a lock delay.
func (w Reason) asked() bool { return w == Dropped || w == Closed }

// Event is something that happened to a ticket, a session, a lock or the cluster. The state machine
// knows no stream and no client: it lists what happened, in order, and its owner delivers that. A
// field has one meaning, and is set for the kinds that it names.
type Event struct {
	// Index is that of the step or command that made it happen.
	Index uint64
	Kind  EventKind
	// TicketRef is the ticket, or the session alone with ticket 0.
	TicketRef
	Token     uint64     // EvGranted, EvLost, EvReleased, EvDowngraded: the grant's
	HoldUntil clock.Time // EvGranted, EvDowngraded: when the maximum hold ends, 0 = never
	Reason    Reason     // EvLost, EvReleased, EvRefused, EvSessionEnded
	Text      string     // EvLost, EvRefused, EvSessionEnded: an operator's reason
	Label     string     // EvSessionEnded: the session's, whose record is removed
	// EvGranted, EvLost, EvReleased of a grant: the session's, whose record may be removed
	Identity string
	Lock     string // EvQueueChanged: the lock's name
	// Items are the locks of the ticket. They are shared and must not be changed.
	Items []Item
	// Tickets are those of a session that attached: all that are live, and all that ended above its
	// acknowledged-through, by number.
	Tickets []TicketState
	Epoch   *LeaderStart // EvEpochStarted: the command that opened it
	Digest  *Digest      // EvDigestReported: the report, or the question
	Version uint32       // EvUpgraded: the new version
}

// EventKind is what happened.
type EventKind uint8

const (
	// EvAttached: Index is the session's attachment now, Tickets its whole state.
	EvAttached EventKind = 1 + iota
	// EvGranted: a ticket got its locks.
	EvGranted
	// EvRefused: a ticket ended that was never granted (Reason), other than by its own drop.
	EvRefused
	// EvLost: a grant ended and its holder had not asked.
	EvLost
	// EvReleased: a ticket ended because its client asked: dropped, or its session closed. Token is
	// 0 if it was never granted.
	EvReleased
	// EvDowngraded: the ticket's exclusive items are shared from now on.
	EvDowngraded
	// EvSessionEnded: a session has ended (Reason), after the events of its tickets.
	EvSessionEnded
	// EvQueueChanged: a ticket entered or left the queue of a lock, which is still in use. At most
	// once for each lock and step.
	EvQueueChanged
	// EvEpochStarted: a node opened the epoch Index.
	EvEpochStarted
	// EvUpgraded: the version is in force from the next entry on.
	EvUpgraded
	// EvDigestReported: a node reported its digest, or asks for those of all.
	EvDigestReported
)

// TicketState is what the state machine knows of a ticket.
type TicketState struct {
	Ticket    uint64
	State     State
	Reason    Reason
	Token     uint64
	HoldUntil clock.Time
}
