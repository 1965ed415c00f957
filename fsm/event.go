package fsm

import (
	"zamok/clock"
)

// Event is something that happened to a ticket, a session, a lock or the cluster. The state machine knows no
// stream and no client: it lists what happened, in order, and its owner delivers that. A field has one meaning, and is
// set for the kinds that it names.
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
	Lock      string     // EvQueueChanged: the lock's name
	// Items are the locks of the ticket. They are shared and must not be changed.
	Items []Item
	// Tickets are those of a session that attached: all that are live, and all that ended above its
	// acknowledged-through, by number.
	Tickets []TicketState
	Epoch   *LeaderStart // EvEpochStarted: the command that opened it
	Digest  *Digest      // EvDigestReported: the report
	Version uint32       // EvVersionSet: the new version
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
	// EvReleased: a ticket ended because its client asked: dropped, or its session closed. Token is 0
	// if it was never granted.
	EvReleased
	// EvDowngraded: the ticket's exclusive items are shared from now on.
	EvDowngraded
	// EvSessionEnded: a session has ended (Reason), after the events of its tickets.
	EvSessionEnded
	// EvQueueChanged: a ticket entered or left the queue of a lock, which is still in use. At most once for each lock
	// and step.
	EvQueueChanged
	// EvEpochStarted: a node opened the epoch Index.
	EvEpochStarted
	// EvVersionSet: the version is in force from the next entry on.
	EvVersionSet
	// EvDigestReported: a node reported its digest.
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
