package fsm

import (
	"cmp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"zamok/clock"
	"zamok/fsm/record"
	"zamok/session"
)

// The state machine's limits are constants of the format: replicas with different limits would
// diverge. Changing one is a new state machine version. Limits that an operator may set are checked
// by the leader before it proposes, and so are most of these.
const (
	NameBytesMax     = 512  // a lock's name: 1 to 512 bytes of UTF-8 without control characters
	MetaBytesMax     = 4096 // a session's or a ticket's meta
	LabelBytesMax    = 256  // a session's label
	IdentityBytesMax = 256  // of the client that opened a session
	OwnerBytesMax    = 256  // an owner's name, inside its session
	ReasonBytesMax   = 512  // an operator's reason
	NodeIDBytesMax   = 64   // a node's id
	AddressBytesMax  = 256  // a node's address, and its version
	ItemsMax         = 64   // locks in one acquisition
	PermitsMax       = 1 << 30

	// TicketWindow is how far above its acknowledged-through a session may number tickets. It
	// bounds the ended tickets that are remembered.
	TicketWindow = 1024
	// TicketsMax bounds the live tickets (waiting or granted) of one session, and so the cost of
	// ending it.
	TicketsMax = 4096
	// SessionsMax bounds the sessions alive at one time: it is the highest quota of them.
	SessionsMax = 1 << 20
	// EndedSessionsMax bounds the ended sessions that are remembered.
	EndedSessionsMax = 1 << 16
	// MembersMax bounds the records of members. It is far more than a cluster has nodes. A new name
	// beyond it is accepted, and the oldest record is removed.
	MembersMax = 128

	// DelaysMax bounds the locks that are delayed at one time: above it, a session with a lock
	// delay gets no more tickets.
	DelaysMax = 1 << 20

	// ExpirationsMax bounds what one entry expires: many expirations at once must not keep all
	// nodes from applying. Sessions count with their tickets, ended ones too. A
	// session is never split, so the expiration of an entry removes at most ExpirationsMax +
	// TicketsMax + TicketWindow records.
	ExpirationsMax = 1024
	// SearchMax bounds the steps of all searches for a deadlock of one entry. What is not searched
	// is admitted.
	SearchMax = 1000
	// AttachedMax bounds the tickets in the Attached events of one entry: an Attach that finds its
	// share of them used up is refused, any other has all tickets of its session.
	AttachedMax = 1 << 13
	// EndedMax bounds how many tickets the result of a ForceRelease names. All that it ended have
	// their events.
	EndedMax = 1024
	// BlockersMax bounds how many holders and waiters a refusal or a query names, and half the
	// links of a cycle that is reported.
	BlockersMax = 16

	// EntryBytesMax, CommandsMax and RenewalsMax bound one entry.
	EntryBytesMax = 1 << 20
	CommandsMax   = 4096
	RenewalsMax   = 1 << 16

	// TokenBaseMax keeps tokens exact in a JSON number and leaves room for centuries of counting.
	TokenBaseMax = 1 << 53
	// TokenLead is the step by which a history may be ahead of the clock (TokenBase): eight and a
	// half years of it.
	TokenLead = 1 << 48
	// indexMax and timeMax bound a snapshot's numbers, far below overflow.
	indexMax = 1 << 62
	timeMax  = 1 << 62
)

const (
	TTLMin = 2 * clock.Second
	// The longest ttl is a setting in the state (SetLongestTTL): LongestTTLDefault at first, and
	// always within these.
	LongestTTLMin     = clock.Minute
	LongestTTLDefault = clock.Hour
	LongestTTLMax     = 7 * 24 * clock.Hour

	DelayMax               = 60 * clock.Second // lock delay
	ReleaseOnDisconnectMax = clock.Hour        // release on disconnect
	// SpanMax bounds a wait and a maximum hold: a year. Longer means none at all.
	SpanMax = record.SpanMax
	// HoldOffMax bounds the restore hold-off: no client was ever given a longer lease and delay.
	HoldOffMax = LongestTTLMax + DelayMax
)

// rule is a condition that must hold, and the complaint if it does not.
type rule struct {
	complaint string
	holds     bool
}

// firstBroken returns the complaint of the first rule that does not hold, or "".
func firstBroken(rules ...rule) string {
	for _, r := range rules {
		if !r.holds {
			return r.complaint
		}
	}
	return ""
}

// The state machine checks every field again after the server, because entries stay in the log.
// Each check names the first field that is out of its limits, or "".

func invalidSettings(c *session.Settings) string {
	return firstBroken(
		rule{"ttl", c.TTL >= TTLMin && c.TTL <= LongestTTLMax},
		rule{"lock_delay", c.LockDelay >= 0 && c.LockDelay <= DelayMax},
		rule{"release_on_disconnect",
			c.ReleaseOnDisconnect >= 0 && c.ReleaseOnDisconnect <= ReleaseOnDisconnectMax},
		rule{"identity", isText(c.Identity, 0, IdentityBytesMax)},
		rule{"label", isText(c.Label, 0, LabelBytesMax)},
		rule{"meta", len(c.Meta) <= MetaBytesMax},
	)
}

func (c *Acquire) invalid() string {
	return cmp.Or(firstBroken(
		rule{"ticket", c.Ticket != 0},
		rule{"items", len(c.Items) > 0 && len(c.Items) <= ItemsMax},
		rule{"wait", c.Wait == Forever || c.Wait >= 0 && c.Wait <= SpanMax},
		rule{"max_hold", c.MaxHold >= 0 && c.MaxHold <= SpanMax},
		rule{"owner", isText(c.Owner, 0, OwnerBytesMax)},
		rule{"meta", len(c.Meta) <= MetaBytesMax},
	), invalidItems(c.Items))
}

func invalidItems(items []Item) string {
	if len(items) == 0 || len(items) > ItemsMax {
		return "items"
	}
	for i, it := range items {
		sameName := func(earlier Item) bool { return earlier.Name == it.Name }
		if field := it.invalid(); field != "" {
			return field
		}
		if slices.ContainsFunc(items[:i], sameName) { // at most 64
			return "name"
		}
	}
	return ""
}

func (it Item) invalid() string {
	permits := it.Mode == Permits
	return firstBroken(
		rule{"name", isName(it.Name)},
		rule{"mode", it.Mode >= Exclusive && it.Mode <= Permits},
		rule{"permits", permits || it.Permits == 0},
		rule{"of", permits || it.Of == 0},
		rule{"of", !permits || it.Of > 0 && it.Of <= PermitsMax},
		rule{"permits", !permits || it.Permits > 0 && it.Permits <= it.Of},
	)
}

func (c *Member) invalid() string {
	return firstBroken(
		rule{"id", isText(c.ID, 1, NodeIDBytesMax)},
		rule{"client", isText(c.Client, 0, AddressBytesMax)},
		rule{"peer", isText(c.Peer, 0, AddressBytesMax)},
		rule{"http", isText(c.HTTP, 0, AddressBytesMax)},
		rule{"version", isText(c.Version, 0, AddressBytesMax)},
		rule{"version", c.StateVersionMin > 0 && c.StateVersionMin <= c.StateVersionMax},
	)
}

func isName(s string) bool { return isText(s, 1, NameBytesMax) }

// isText reports whether s is UTF-8 of this many bytes without control characters.
func isText(s string, bytesMin, bytesMax int) bool {
	return len(s) >= bytesMin && len(s) <= bytesMax && utf8.ValidString(s) &&
		!strings.ContainsFunc(s, unicode.IsControl)
}
