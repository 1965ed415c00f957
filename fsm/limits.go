package fsm

import (
	"zamok/clock"
	"zamok/session/record"
)

// The machine's limits are constants of the format: a limit that differed between nodes would
// split the replicas. Changing one is a new state machine version. Limits that an operator may set live at
// the leader's door, which is also where most of these are met first.
const (
	NameBytesMax     = 512  // a lock's name: 1 to 512 bytes of UTF-8 without control characters
	MetadataBytesMax = 4096 // a session's or a ticket's metadata
	LabelBytesMax    = 256  // a session's label
	IdentityBytesMax = 256  // who opened a session
	OwnerBytesMax    = 256  // an owner's name, inside its session
	ReasonBytesMax   = 512  // an operator's reason
	NodeIDBytesMax   = 64   // a node's id
	AddressBytesMax  = 256  // a node's address, and its version
	ItemsMax         = 64   // locks in one acquisition
	PermitsMax       = 1 << 30

	// TicketWindow is how far above its floor a session may number tickets. It bounds the gone
	// tickets that are remembered.
	TicketWindow = 1024
	// TicketsMax bounds the tickets in hand (waiting or granted) of one session, and with them
	// what the end of one session costs.
	TicketsMax = 4096
	// SessionsMax bounds the sessions alive at one time.
	SessionsMax = 1 << 20
	// MembersMax bounds the records of members, and the reported digests. It is far more than a cluster
	// has nodes. A new name beyond it is accepted, and the oldest record is removed.
	MembersMax = 128

	// DelaysMax bounds the locks that are delayed at one time: above it, a session with a lock delay
	// gets no more tickets.
	DelaysMax = 1 << 20

	// ExpirationsMax bounds what one entry expires: a storm of expiries must not stop all nodes from
	// applying. Ended sessions count with the tickets that they take along, gone ones too. A
	// session is never split, so the expiration of an entry removes at most ExpirationsMax + TicketsMax +
	// TicketWindow records.
	ExpirationsMax = 1024
	// SearchMax bounds the steps of one search for a deadlock, SearchEntryMax those of all searches
	// of an entry together. What is not searched is admitted.
	SearchMax      = 10_000
	SearchEntryMax = 100_000
	// AttachedMax bounds the tickets in the Attached events of one entry: an Attach that finds so many is refused, one
	// that finds fewer has all tickets of its session.
	AttachedMax = 1 << 16
	// EndedMax bounds how many tickets the result of a ForceRelease names. All that it ended have their events.
	EndedMax = 1024
	// BlockersMax bounds how many holders and waiters a refusal or a query names, and half the links
	// of a cycle that is told.
	BlockersMax = 16

	// EntryBytesMax, CommandsMax and RenewalsMax bound one entry.
	EntryBytesMax = 1 << 20
	CommandsMax   = 4096
	RenewalsMax   = 1 << 16

	// TokenBaseMax keeps tokens exact in a JSON number and leaves room for centuries of counting.
	TokenBaseMax = 1 << 53
	// TokenLead is the step by which a history may be ahead of the clock (TokenBase): eight and a half years of it.
	TokenLead = 1 << 48
	// indexMax and timeMax are what a snapshot may hold: far from where numbers end.
	indexMax = 1 << 62
	timeMax  = 1 << 62
)

const (
	TTLMin   = 2 * clock.Second
	TTLMax   = clock.Hour
	DelayMax = 60 * clock.Second // lock delay
	GraceMax = clock.Hour        // release on disconnect
	// SpanMax bounds a wait and a maximum hold: a year. Longer means none at all.
	SpanMax = record.SpanMax
	// HoldOffMax is how long a restored machine grants nothing when the operator knows no better:
	// the longest lease and delay that anyone could have been given.
	HoldOffMax = TTLMax + DelayMax
)
