package fsm

import (
	"zamok/clock"
	"zamok/session/record"
)

// The state machine's limits are constants of the format: replicas with different limits would diverge. Changing one is
// a new state machine version. Limits that an operator may set are checked by the leader before it proposes, and so are
// most of these.
const (
	NameBytesMax     = 512  // a lock's name: 1 to 512 bytes of UTF-8 without control characters
	MetadataBytesMax = 4096 // a session's or a ticket's metadata
	LabelBytesMax    = 256  // a session's label
	IdentityBytesMax = 256  // of the client that opened a session
	OwnerBytesMax    = 256  // an owner's name, inside its session
	ReasonBytesMax   = 512  // an operator's reason
	NodeIDBytesMax   = 64   // a node's id
	AddressBytesMax  = 256  // a node's address, and its version
	ItemsMax         = 64   // locks in one acquisition
	PermitsMax       = 1 << 30

	// TicketWindow is how far above its acknowledged-through a session may number tickets. It bounds the ended tickets
	// that are remembered.
	TicketWindow = 1024
	// TicketsMax bounds the live tickets (waiting or granted) of one session, and so the cost of ending it.
	TicketsMax = 4096
	// SessionsMax bounds the sessions alive at one time.
	SessionsMax = 1 << 20
	// MembersMax bounds the records of members, and the reported digests. It is far more than a cluster
	// has nodes. A new name beyond it is accepted, and the oldest record is removed.
	MembersMax = 128

	// DelaysMax bounds the locks that are delayed at one time: above it, a session with a lock delay
	// gets no more tickets.
	DelaysMax = 1 << 20

	// ExpirationsMax bounds what one entry expires: many expirations at once must not keep all nodes from applying.
	// Sessions count with their tickets, ended ones too. A
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
	// of a cycle that is reported.
	BlockersMax = 16

	// EntryBytesMax, CommandsMax and RenewalsMax bound one entry.
	EntryBytesMax = 1 << 20
	CommandsMax   = 4096
	RenewalsMax   = 1 << 16

	// TokenBaseMax keeps tokens exact in a JSON number and leaves room for centuries of counting.
	TokenBaseMax = 1 << 53
	// TokenLead is the step by which a history may be ahead of the clock (TokenBase): eight and a half years of it.
	TokenLead = 1 << 48
	// indexMax and timeMax bound a snapshot's numbers, far below overflow.
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
	// HoldOffMax is how long nothing is granted after a restore by default: the longest lease and delay that a client could
	// have been given.
	HoldOffMax = TTLMax + DelayMax
)
