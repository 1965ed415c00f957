package fsm

import (
	"errors"
	"fmt"
	"slices"

	"zamok/session"
)

// DecodeEntry reads an entry that nobody else will change: for tools and tests. An error says
// where the bytes are not an entry; commands, items and renewals are counted from 1 there.
func DecodeEntry(b []byte) (Entry, error) {
	var d decoded
	if err := decodeEntry(b, &d); err != nil {
		return Entry{}, fmt.Errorf("not an entry: %w", err)
	}
	return d.entry, nil
}

// decoded is an entry whose memory the next entry uses again: Renewals, Commands, what those point
// to and their Items are valid until then, and a caller that keeps one copies it. Texts are not reused
// and may be kept.
//
// Commands of clients, which come by the hundred, stand in slices by kind; the few of nodes and
// operators have memory of their own. A slice that must grow moves to a larger array, and pointers
// given out before keep the old one, where nothing changes any more: so they stay good.
type decoded struct {
	entry Entry

	opens      []OpenSession
	attaches   []Attach
	closes     []CloseSession
	acquires   []Acquire
	items      []Item
	drops      []Drop
	downgrades []Downgrade
}

// decodeEntry reads b into d and keeps nothing of b. After an error d is empty.
func decodeEntry(b []byte, d *decoded) error {
	d.reset()
	err := d.read(b)
	if err != nil {
		d.reset()
	}
	return err
}

// reset empties d and keeps its memory. Texts are let go of, or a slot that is seldom reached
// would hold on to some long name or metadata for as long as the machine lives.
func (d *decoded) reset() {
	clear(d.entry.Commands)
	d.entry = Entry{Renewals: d.entry.Renewals[:0], Commands: d.entry.Commands[:0]}
	clear(d.opens)
	clear(d.acquires)
	clear(d.items)
	d.opens, d.acquires, d.items = d.opens[:0], d.acquires[:0], d.items[:0]
	d.attaches, d.closes = d.attaches[:0], d.closes[:0]
	d.drops, d.downgrades = d.drops[:0], d.downgrades[:0]
}

func (d *decoded) read(b []byte) error {
	switch {
	case len(b) > EntryBytesMax:
		return fmt.Errorf("%d bytes are more than the %d that an entry may have", len(b), EntryBytesMax)
	case len(b) < entryBytesMin:
		return fmt.Errorf("%d bytes are less than the %d that an entry has", len(b), entryBytesMin)
	case b[0] != entryVersion:
		return fmt.Errorf("version %d is unknown: this binary reads version %d", b[0], entryVersion)
	}
	body, err := verifyChecksum(b)
	if err != nil {
		return err
	}
	r := reader{bytes: body, offset: 1}
	d.entry.Version = r.number32("version")
	d.entry.Reading.Epoch = r.number("epoch")
	d.entry.Reading.Now = readTime(&r, "now")
	d.readRenewals(&r)
	d.readCommands(&r)
	return r.end()
}

func (d *decoded) readRenewals(r *reader) {
	n := r.count("renewals", renewalBytesMin)
	if n > RenewalsMax {
		r.fail("renewals", "%d are more than the %d that an entry may have", n, RenewalsMax)
		return
	}
	ids := slices.Grow(d.entry.Renewals, n)
	var id session.ID
	for i := range n {
		previous := id
		id += readSession(r)
		if i > 0 && id <= previous { // the distance is 0, or the sum needs more than 64 bits
			r.fail("session", "it is not above the one before")
		}
		if r.err != nil {
			r.wrapError("renewal %d", i+1)
			return
		}
		ids = append(ids, id)
	}
	d.entry.Renewals = ids
}

func (d *decoded) readCommands(r *reader) {
	n := r.count("commands", commandBytesMin)
	if n > CommandsMax {
		r.fail("commands", "%d are more than the %d that an entry may have", n, CommandsMax)
		return
	}
	commands := slices.Grow(d.entry.Commands, n)
	for i := range n {
		if r.remaining() == 0 {
			r.fail("commands", "%d are announced and the bytes end after %d", n, i)
			return
		}
		o := op(r.byte("op"))
		c := d.readCommand(o, r)
		if r.err != nil {
			r.wrapError("command %d: %v", i+1, o)
			return
		}
		commands = append(commands, c)
	}
	d.entry.Commands = commands
}

func (d *decoded) readCommand(o op, r *reader) Command {
	switch o {
	case opOpenSession:
		return readOpenSession(r, appendZero(&d.opens))
	case opAttach:
		return readAttach(r, appendZero(&d.attaches))
	case opDetached:
		return readDetached(r)
	case opCloseSession:
		return readCloseSession(r, appendZero(&d.closes))
	case opAcquire:
		return d.readAcquire(r, appendZero(&d.acquires))
	case opDrop:
		return readDrop(r, appendZero(&d.drops))
	case opDowngrade:
		return readDowngrade(r, appendZero(&d.downgrades))
	case opForceRelease:
		return readForceRelease(r)
	case opExpireSession:
		return readExpireSession(r)
	case opLeaderStart:
		return readLeaderStart(r)
	case opMember:
		return readMember(r)
	case opSetVersion:
		return readSetVersion(r)
	case opDigest:
		return readDigest(r)
	}
	r.err = errors.New("no command has this number")
	return nil
}

// appendZero adds a zero value to a slice and returns where it stands.
func appendZero[T any](slice *[]T) *T {
	*slice = append(*slice, *new(T))
	return &(*slice)[len(*slice)-1]
}

func readOpenSession(r *reader, c *OpenSession) *OpenSession {
	r.raw("secret", c.Secret[:])
	c.Identity = r.text("identity")
	c.Label = r.text("label")
	c.Metadata = r.text("metadata")
	c.TTL = r.signed("ttl")
	c.LockDelay = r.signed("lock delay")
	c.Grace = r.signed("grace")
	return c
}

func readAttach(r *reader, c *Attach) *Attach {
	c.Session = readSession(r)
	r.raw("secret", c.Secret[:])
	c.AckedThrough = r.number("floor")
	c.Attempt = r.number("attempt")
	return c
}

func readDetached(r *reader) *Detached {
	c := new(Detached)
	c.Session = readSession(r)
	c.Attachment = r.number("attachment")
	c.Index = r.number("index")
	return c
}

func readCloseSession(r *reader, c *CloseSession) *CloseSession {
	c.Session = readSession(r)
	return c
}

func (d *decoded) readAcquire(r *reader, c *Acquire) *Acquire {
	c.Session = readSession(r)
	c.Ticket = r.number("ticket")
	c.AckedThrough = r.number("floor")
	c.Items = d.readItems(r)
	c.WaitFor = r.signed("wait")
	c.MaxHold = r.signed("max hold")
	c.Owner = r.text("owner")
	c.Metadata = r.text("metadata")
	return c
}

func (d *decoded) readItems(r *reader) []Item {
	n := r.count("items", itemBytesMin)
	if n == 0 {
		return nil
	}
	first := len(d.items)
	d.items = slices.Grow(d.items, n)[:first+n]
	// Its capacity ends with it: appending to one acquisition's items can't write into the next's.
	items := d.items[first : first+n : first+n]
	for i := range items {
		item := &items[i]
		item.Name = r.text("name")
		item.Mode = Mode(r.byte("mode"))
		item.Permits = r.number32("permits")
		item.Limit = r.number32("of")
		if r.err != nil {
			r.wrapError("item %d", i+1)
			return nil
		}
	}
	return items
}

func readDrop(r *reader, c *Drop) *Drop {
	c.Session = readSession(r)
	c.Ticket = r.number("ticket")
	c.AckedThrough = r.number("floor")
	return c
}

func readDowngrade(r *reader, c *Downgrade) *Downgrade {
	c.Session = readSession(r)
	c.Ticket = r.number("ticket")
	c.AckedThrough = r.number("floor")
	return c
}

func readForceRelease(r *reader) *ForceRelease {
	c := new(ForceRelease)
	c.Name = r.text("name")
	c.Token = r.number("token")
	c.Reason = r.text("reason")
	return c
}

func readExpireSession(r *reader) *ExpireSession {
	c := new(ExpireSession)
	c.Session = readSession(r)
	c.Reason = r.text("reason")
	return c
}

func readLeaderStart(r *reader) *LeaderStart {
	c := new(LeaderStart)
	c.Node = r.text("node")
	c.Nonce = r.number("nonce")
	r.raw("cluster", c.Cluster[:])
	c.TokenBase = r.number("token base")
	return c
}

func readMember(r *reader) *Member {
	c := new(Member)
	c.ID = r.text("id")
	r.raw("incarnation", c.Incarnation[:])
	c.Client = r.text("client")
	c.Peer = r.text("peer")
	c.HTTP = r.text("http")
	c.Version = r.text("version")
	c.StateVersionMin = r.number32("version min")
	c.StateVersionMax = r.number32("version max")
	c.FreeBytes = r.number("free bytes")
	c.LowSpaceThreshold = r.number("free mark")
	c.ElectionTimeout = r.number32("timeout")
	c.ElectionTimeoutFixed = r.number32("fixed")
	return c
}

func readSetVersion(r *reader) *SetVersion {
	c := new(SetVersion)
	c.Version = r.number32("version")
	return c
}

func readDigest(r *reader) *Digest {
	c := new(Digest)
	c.Node = r.text("node")
	c.Index = r.number("index")
	c.Value = r.number("value")
	return c
}

func readSession(r *reader) session.ID { return session.ID(r.number("session")) }
