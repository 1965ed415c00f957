package fsm

import (
	"zamok/clock"
)

// Event is something that happened to a ticket, a session, a lock or the cluster. The machine knows
// no stream and no client: it says what happened, in order, and others carry it.
type Event struct {
	// Index is that of the step or command that made it happen.
	Index uint64
	Kind  EventKind
	// TicketRef is the ticket, or the session alone with ticket 0.
	TicketRef
	Token     uint64     // EvGranted, EvLost, EvReleased, EvDowngraded: the grant's
	HoldUntil clock.Time // EvGranted, EvDowngraded: when the maximum hold ends, 0 = never
	Reason    Reason     // EvLost, EvReleased, EvRefused, EvSessionEnded
	// Text is an operator's reason with EvLost, EvRefused and EvSessionEnded, the lock's name with
	// EvQueueChanged, the node's id with EvEpochStarted and EvDigestReported.
	Text string
	// Label is the session's, with EvSessionEnded: after it nothing else knows the session.
	Label string
	// Items are the locks of the ticket. They are shared and must not be changed.
	Items []Item
	// Tickets are those of a session that attached: all that are live and all that are above its
	// floor, by number.
	Tickets []TicketState
	// Value is the nonce of EvEpochStarted, the digest of EvDigestReported, the new number of EvVersionSet; At is
	// the index that EvDigestReported speaks of.
	Value, At uint64
}

// EventKind says what happened.
type EventKind uint8

const (
	// EvAttached: Index is the session's attachment now, Tickets its whole state.
	EvAttached EventKind = 1 + iota
	// EvGranted: a ticket got its locks.
	EvGranted
	// EvRefused: a ticket is gone without ever having been granted (Reason), other than by its own drop.
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
	// EvQueueChanged: somebody came to or left the queue of the lock Text, which is still there. At
	// most once a lock and step.
	EvQueueChanged
	// EvEpochStarted: node Text opened the epoch Index for the nonce Value.
	EvEpochStarted
	// EvVersionSet: the version is Value from the next entry on; the rest of this one lives under the old.
	EvVersionSet
	// EvDigestReported: node Text had the digest Value at index At.
	EvDigestReported
)

// TicketState is what the machine knows of a ticket.
type TicketState struct {
	Ticket    uint64
	State     State
	Reason    Reason
	Token     uint64
	HoldUntil clock.Time
}
