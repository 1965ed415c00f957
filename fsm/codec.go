package fsm

import (
	"fmt"

	"zamok/session"
)

// # The form of an entry
//
// This table is the reference. It is made of the parts in encoding.go; what is unnamed here is a
// number. Once released it never changes: another form is another version, and comes with a new
// state machine version, so that a binary that can't read it has stopped before it meets one.
//
//	version          byte    1
//	version                  up to 2³²−1
//	epoch
//	now                      up to 2⁶³−1
//	renewals                 how many: up to RenewalsMax; then, for each
//	  session                the first as it is, each following one as the distance from the one
//	                         before, which is never 0
//	commands                 how many: up to CommandsMax; then, for each, op and fields
//	checksum         4 bytes over everything from version on
//
//	op  command        fields
//	 1  OpenSession    secret raw 32 · identity text · label text · metadata text · ttl signed ·
//	                   lock delay signed · grace signed
//	 2  Attach         session · secret raw 32 · floor · attempt
//	 3  Detached       session · attachment · index
//	 4  CloseSession   session
//	 5  Acquire        session · ticket · floor · items · wait signed · max hold signed ·
//	                   owner text · metadata text
//	                   items: how many; then, for each, name text · mode byte · permits · of
//	 6  Drop           session · ticket · floor
//	 7  Downgrade      session · ticket · floor
//	 8  ForceRelease   name text · token · reason text
//	 9  ExpireSession  session · reason text
//	10  LeaderStart    node text · nonce · cluster raw 16 · token base
//	11  Member         id text · incarnation raw 16 · client text · peer text · http text ·
//	                   version text · version min · version max · free bytes · free mark ·
//	                   timeout · fixed
//	12  SetVersion       version
//	13  Digest         node text · index · value
//
// op is a byte. permits, limit, version, version min, version max, timeout and fixed go up to 2³²−1. An entry has at most
// EntryBytesMax bytes, and nothing stands between its parts or after the last one.
//
// Reading (decode.go) refuses what is not of this form, and nothing else. A name that is no UTF-8, a mode that
// does not exist, too many items or a negative ttl are the fault of one command: the machine
// answers it, and the other commands of the entry continue.

const (
	entryVersion = 1

	// The least bytes that an entry, a renewal, a command and an item take.
	entryBytesMin   = 6 + checksumBytes
	renewalBytesMin = 1
	commandBytesMin = 2
	itemBytesMin    = 4
)

// Append adds the entry's bytes to b. It checks nothing: an entry that is beyond the limits of one,
// whose renewals don't rise or whose reading is negative becomes bytes that every machine refuses.
func (e *Entry) Append(b []byte) []byte {
	start := len(b)
	b = append(b, entryVersion)
	b = appendNumber(b, e.Version)
	b = appendNumber(b, e.Reading.Epoch)
	b = appendNumber(b, uint64(e.Reading.Now))
	b = appendNumber(b, uint64(len(e.Renewals)))
	var previous session.ID
	for _, id := range e.Renewals {
		b = appendNumber(b, id-previous)
		previous = id
	}
	b = appendNumber(b, uint64(len(e.Commands)))
	for _, c := range e.Commands {
		b = appendCommand(b, c)
	}
	return appendChecksum(b, start)
}

// Size is no less than the bytes that a command takes in an entry.
func Size(c Command) int {
	const fixed = 128 // more than the numbers, hashes and lengths of any command but Acquire's items
	switch c := c.(type) {
	case *OpenSession:
		return fixed + len(c.Identity) + len(c.Label) + len(c.Metadata)
	case *Acquire:
		n := fixed + len(c.Owner) + len(c.Metadata)
		for i := range c.Items {
			n += 16 + len(c.Items[i].Name)
		}
		return n
	case *ForceRelease:
		return fixed + len(c.Name) + len(c.Reason)
	case *ExpireSession:
		return fixed + len(c.Reason)
	case *LeaderStart:
		return fixed + len(c.Node)
	case *Member:
		return fixed + len(c.ID) + len(c.Client) + len(c.Peer) + len(c.HTTP) + len(c.Version)
	case *Digest:
		return fixed + len(c.Node)
	}
	return fixed
}

func appendCommand(b []byte, c Command) []byte {
	b = append(b, byte(c.op()))
	switch c := c.(type) {
	case *OpenSession:
		b = append(b, c.Secret[:]...)
		b = appendText(b, c.Identity)
		b = appendText(b, c.Label)
		b = appendText(b, c.Metadata)
		b = appendSigned(b, c.TTL)
		b = appendSigned(b, c.LockDelay)
		return appendSigned(b, c.Grace)
	case *Attach:
		b = appendNumber(b, c.Session)
		b = append(b, c.Secret[:]...)
		b = appendNumber(b, c.AckedThrough)
		return appendNumber(b, c.Attempt)
	case *Detached:
		b = appendNumber(b, c.Session)
		b = appendNumber(b, c.Attachment)
		return appendNumber(b, c.Index)
	case *CloseSession:
		return appendNumber(b, c.Session)
	case *Acquire:
		b = appendTicket(b, c.Session, c.Ticket, c.AckedThrough)
		b = appendItems(b, c.Items)
		b = appendSigned(b, c.WaitFor)
		b = appendSigned(b, c.MaxHold)
		b = appendText(b, c.Owner)
		return appendText(b, c.Metadata)
	case *Drop:
		return appendTicket(b, c.Session, c.Ticket, c.AckedThrough)
	case *Downgrade:
		return appendTicket(b, c.Session, c.Ticket, c.AckedThrough)
	case *ForceRelease:
		b = appendText(b, c.Name)
		b = appendNumber(b, c.Token)
		return appendText(b, c.Reason)
	case *ExpireSession:
		b = appendNumber(b, c.Session)
		return appendText(b, c.Reason)
	case *LeaderStart:
		b = appendText(b, c.Node)
		b = appendNumber(b, c.Nonce)
		b = append(b, c.Cluster[:]...)
		return appendNumber(b, c.TokenBase)
	case *Member:
		return appendMember(b, c)
	case *SetVersion:
		return appendNumber(b, c.Version)
	case *Digest:
		b = appendText(b, c.Node)
		b = appendNumber(b, c.Index)
		return appendNumber(b, c.Value)
	}
	panic(fmt.Sprintf("fsm: %T has no form", c)) // a new command without its case
}

func appendTicket(b []byte, id session.ID, ticket, ackedThrough uint64) []byte {
	b = appendNumber(b, id)
	b = appendNumber(b, ticket)
	return appendNumber(b, ackedThrough)
}

func appendItems(b []byte, items []Item) []byte {
	b = appendNumber(b, uint64(len(items)))
	for i := range items {
		item := &items[i]
		b = appendText(b, item.Name)
		b = append(b, byte(item.Mode))
		b = appendNumber(b, item.Permits)
		b = appendNumber(b, item.Limit)
	}
	return b
}

func appendMember(b []byte, c *Member) []byte {
	b = appendText(b, c.ID)
	b = append(b, c.Incarnation[:]...)
	b = appendText(b, c.Client)
	b = appendText(b, c.Peer)
	b = appendText(b, c.HTTP)
	b = appendText(b, c.Version)
	b = appendNumber(b, c.StateVersionMin)
	b = appendNumber(b, c.StateVersionMax)
	b = appendNumber(b, c.FreeBytes)
	b = appendNumber(b, c.LowSpaceThreshold)
	b = appendNumber(b, c.ElectionTimeout)
	return appendNumber(b, c.ElectionTimeoutFixed)
}

// String is the command's name in errors.
func (o op) String() string {
	if o == 0 || o >= opEnd {
		return fmt.Sprintf("op %d", uint8(o))
	}
	return [...]string{
		opOpenSession:   "open session",
		opAttach:        "attach",
		opDetached:      "detached",
		opCloseSession:  "close session",
		opAcquire:       "acquire",
		opDrop:          "drop",
		opDowngrade:     "downgrade",
		opForceRelease:  "force release",
		opExpireSession: "expire session",
		opLeaderStart:   "leader start",
		opMember:        "member",
		opSetVersion:    "set version",
		opDigest:        "digest",
	}[o]
}
