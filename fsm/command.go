package fsm

import (
	"zamok/clock"
	"zamok/session"
)

// Entry is one record of the replicated log.
type Entry struct {
	// Version is the state machine version that the entry was encoded for.
	Version uint32
	// Reading is the leader's clock, read last of all: after every renewal and command was in.
	Reading clock.Reading
	// Renewals are the sessions that renewed, in ascending order, each once.
	Renewals []session.ID
	Commands []Command
}

// Command is one request to the state machine: a pointer to one of the types below.
type Command interface {
	code(*coder) // visits its fields, in the order of the entry's form
	execute(*Machine) Result
}

// OpenSession opens a session whose id is the command's index, or answers with the living session
// that the same secret opened: that one keeps its first ttl and settings.
type OpenSession struct {
	// Secret is the SHA-256 of the client's secret, which no node stores.
	Secret session.Hash
	session.Settings
}

// Attach makes this command's index the session's attachment and yields one Attached event with
// the state of every ticket that is live or above the acknowledged-through. The client numbers its
// attempts upwards: one that is not above the highest that took effect is refused, so that a late
// copy of an abandoned attempt detaches no stream. Attempt 0 has no number, and takes effect in any
// case.
type Attach struct {
	Session      session.ID
	Secret       session.Hash
	AckedThrough uint64
	Attempt      uint64
}

// ReleaseOnDisconnect ends the session, unless it attached again, or was renewed after the leader
// saw the stream of that Attachment break, with its state machine at Index.
type ReleaseOnDisconnect struct {
	Session    session.ID
	Attachment uint64
	Index      uint64
}

// CloseSession is the clean end: waits and grants are dropped, without delay.
type CloseSession struct{ Session session.ID }

// WithdrawSession is a CloseSession of a session whose client has got nothing of it, so that the
// client may open another one with the same secret: of an acquisition that was refused, or whose
// answer could not be given.
type WithdrawSession CloseSession

// Forever is the Wait that never ends.
const Forever clock.Span = -1

// Acquire asks for all Items at once, as the session's ticket number Ticket.
type Acquire struct {
	Session      session.ID
	Ticket       uint64 // from 1
	AckedThrough uint64
	Items        []Item
	// Wait is 0 to be refused rather than wait, a span of cluster time, or Forever.
	Wait    clock.Span
	MaxHold clock.Span // a span of cluster time, 0 = no maximum
	Owner   string     // "" = none: takes no part in the search for deadlocks as a holder
	Meta    string
}

// Item is one lock of an acquisition.
type Item struct {
	Name string
	Mode Mode
	// Permits asks for this many of the lock's permits, Of is how many there are; both are 0 in the
	// other modes.
	Permits, Of uint32
}

// Mode is how an item wants its lock.
type Mode uint8

const (
	Exclusive Mode = 1 + iota
	Shared
	Permits
)

// Drop ends the ticket whatever it is: releases, cancels, gives up. It touches nothing else.
type Drop struct {
	Session      session.ID
	Ticket       uint64
	AckedThrough uint64
}

// DropUnrenewed is a Drop that does not renew its session: of a client that may release and no
// longer hold.
type DropUnrenewed Drop

// Downgrade makes each exclusive item of a granted ticket shared. The token stays.
type Downgrade Drop

// ForceRelease ends, whole, the tickets that hold Name with a token ≤ Token: what the operator saw.
// The token is always needed, since a command without one would end a later grant if it were
// repeated.
type ForceRelease struct {
	Name   string
	Token  uint64 // from 1
	Reason string
}

// ExpireSession ends a session for an operator.
type ExpireSession struct {
	Session session.ID
	Reason  string
}

// LeaderStart begins an epoch: its number is this command's index. It carries no time.
type LeaderStart struct {
	Node  string
	Nonce uint64
	// Cluster and TokenBase count in the first LeaderStart of a history only: the cluster's id,
	// never zero, and the least index that this very command may have.
	Cluster   ClusterID
	TokenBase uint64
}

// ClusterID names one history of one cluster. The zero value means that none is known yet.
type ClusterID [16]byte

// Member is what a node announces about itself.
type Member struct {
	ID          string
	Incarnation Incarnation
	// Client, Peer and HTTP are the addresses others reach it under.
	Client, Peer, HTTP               string
	Version                          string
	StateVersionMin, StateVersionMax uint32 // what its binary knows
	// FreeBytes is what its disk has left; below LowSpaceThreshold the disk is low.
	FreeBytes, LowSpaceThreshold uint64
	// ElectionTimeout is after how many milliseconds without a leader it campaigns, and Fixed the
	// one that its operator has chosen; 0 = none.
	ElectionTimeout, ElectionTimeoutFixed uint32
}

// Incarnation is written once with a data directory: the same id with another one is another data
// directory, and another server to raft.
type Incarnation [16]byte

// Upgrade raises the state machine version to Version, which must be one more than the current one.
type Upgrade struct{ Version uint32 }

// SetLongestTTL changes the longest ttl that a session may be opened with. Living sessions keep
// theirs.
type SetLongestTTL struct{ TTL clock.Span }

// SetQuotas changes the quotas that are not 0 here.
type SetQuotas struct{ Quotas }

// Digest is a node's report of its digest after the entry with this index in raft's log. Index 0 is
// a question: every node reports its digest after the entry with this command.
type Digest struct {
	Node  string
	Index uint64
	Value uint64
}
