package fsm

import (
	"slices"

	"zamok/fsm/record"
	"zamok/session"
)

// # The form of an entry
//
// This table is the reference. It is made of the parts of package record; what is unnamed here is a
// number. Once released it never changes: another form is another version, and comes with a new
// state machine version, so that a binary that can't read it stops before it gets one.
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
//	 1  OpenSession    secret raw 32 · identity text · label text · meta text · ttl signed ·
//	                   lock delay signed · release on disconnect signed
//	 2  Attach         session · secret raw 32 · acked through · attempt
//	 3  ReleaseOnDisconnect       session · attachment · index
//	 4  CloseSession   session
//	 5  Acquire        session · ticket · acked through · items · wait signed · max hold signed ·
//	                   owner text · meta text
//	                   items: how many; then, for each, name text · mode · permits · of
//	 6  Drop           session · ticket · acked through
//	 7  Downgrade      session · ticket · acked through
//	 8  ForceRelease   name text · token · reason text
//	 9  ExpireSession  session · reason text
//	10  LeaderStart    node text · nonce · cluster raw 16 · token base
//	11  Member         id text · incarnation raw 16 · client text · peer text · http text ·
//	                   version text · version min · version max · free bytes · low-space threshold
//	                   · timeout · fixed
//	12  Upgrade       version
//	13  Digest         node text · index · value
//	14  SetLongestTTL  ttl signed
//	15  SetQuotas      sessions · tickets · bytes · share
//	16  DropUnrenewed  session · ticket · acked through
//	17  WithdrawSession  session
//
// op and mode go up to 255; permits, of, share, version, version min, version max, timeout and
// fixed go up to 2³²−1. An entry has at most EntryBytesMax bytes, and nothing is between its parts
// or after the last one.
//
// Reading refuses what is not of this form, and nothing else. A name that is no UTF-8, a mode that
// does not exist, too many items or a negative ttl are the fault of one command: the state
// machine refuses it, and applies the other commands of the entry.

const (
	entryVersion = 1

	// The least bytes that an entry, a renewal, a command and an item take.
	entryBytesMin   = 6 + record.ChecksumBytes
	renewalBytesMin = 1
	commandBytesMin = 2
	itemBytesMin    = 4
)

// Append adds the entry's bytes to b. It checks nothing: an entry that is beyond the limits of one,
// whose renewals don't rise or whose reading is negative becomes bytes that every node refuses.
func (e *Entry) Append(b []byte) []byte {
	start := len(b)
	w := coder{Coder: record.NewWriter(append(b, entryVersion))}
	e.codeHead(&w)
	w.Count("commands", len(e.Commands), CommandsMax, commandBytesMin)
	for _, c := range e.Commands {
		o := opOf(c)
		record.Byte(&w.Coder, "op", &o)
		c.code(&w)
	}
	return record.AppendChecksum(w.Bytes(), start)
}

// Size is no less than the bytes that a command takes in an entry, and about what it takes in
// memory.
func Size(c Command) int {
	w := coder{Coder: record.NewSizer()}
	c.code(&w)
	return 1 + w.Size()
}

// coder is a record.Coder with room for the items that it reads.
type coder struct {
	record.Coder
	items []Item
}

func (e *Entry) codeHead(c *coder) {
	c.Number32("version", &e.Version)
	record.Number(&c.Coder, "epoch", &e.Reading.Epoch)
	c.Time("now", &e.Reading.Now)
	e.codeRenewals(c)
}

// codeRenewals visits the renewals as distances. Reading uses the memory of those that there were.
func (e *Entry) codeRenewals(c *coder) {
	n := c.Count("renewals", len(e.Renewals), RenewalsMax, renewalBytesMin)
	if c.Reading() {
		e.Renewals = slices.Grow(e.Renewals[:0], n)[:n]
	}
	var previous session.ID
	for i := range e.Renewals {
		distance := e.Renewals[i] - previous
		record.Number(&c.Coder, "session", &distance)
		id := previous + distance
		if c.Reading() {
			if i > 0 && id <= previous { // the distance is 0, or the sum needs more than 64 bits
				c.Fail("session", "it is not above the one before")
			}
			if c.Err() != nil {
				c.Wrap("renewal %d", i+1)
				return
			}
			e.Renewals[i] = id
		}
		previous = id
	}
}

func (o *OpenSession) code(c *coder) {
	c.Raw("secret", o.Secret[:])
	o.Settings.Code(&c.Coder)
}

func (a *Attach) code(c *coder) {
	record.Number(&c.Coder, "session", &a.Session)
	c.Raw("secret", a.Secret[:])
	record.Number(&c.Coder, "acked through", &a.AckedThrough)
	record.Number(&c.Coder, "attempt", &a.Attempt)
}

func (d *ReleaseOnDisconnect) code(c *coder) {
	record.Number(&c.Coder, "session", &d.Session)
	record.Number(&c.Coder, "attachment", &d.Attachment)
	record.Number(&c.Coder, "index", &d.Index)
}

func (s *CloseSession) code(c *coder)    { record.Number(&c.Coder, "session", &s.Session) }
func (s *WithdrawSession) code(c *coder) { (*CloseSession)(s).code(c) }

func (a *Acquire) code(c *coder) {
	c.ticket(&a.Session, &a.Ticket, &a.AckedThrough)
	c.codeItems(&a.Items)
	c.Signed("wait", &a.Wait)
	c.Signed("max hold", &a.MaxHold)
	c.Text("owner", &a.Owner)
	c.Text("meta", &a.Meta)
}

func (d *Drop) code(c *coder)          { c.ticket(&d.Session, &d.Ticket, &d.AckedThrough) }
func (d *DropUnrenewed) code(c *coder) { (*Drop)(d).code(c) }
func (d *Downgrade) code(c *coder)     { (*Drop)(d).code(c) }

func (f *ForceRelease) code(c *coder) {
	c.Text("name", &f.Name)
	record.Number(&c.Coder, "token", &f.Token)
	c.Text("reason", &f.Reason)
}

func (e *ExpireSession) code(c *coder) {
	record.Number(&c.Coder, "session", &e.Session)
	c.Text("reason", &e.Reason)
}

func (l *LeaderStart) code(c *coder) {
	c.Text("node", &l.Node)
	record.Number(&c.Coder, "nonce", &l.Nonce)
	c.Raw("cluster", l.Cluster[:])
	record.Number(&c.Coder, "token base", &l.TokenBase)
}

func (m *Member) code(c *coder) {
	c.Text("id", &m.ID)
	c.Raw("incarnation", m.Incarnation[:])
	c.Text("client", &m.Client)
	c.Text("peer", &m.Peer)
	c.Text("http", &m.HTTP)
	c.Text("version", &m.Version)
	c.Number32("version min", &m.StateVersionMin)
	c.Number32("version max", &m.StateVersionMax)
	record.Number(&c.Coder, "free bytes", &m.FreeBytes)
	record.Number(&c.Coder, "low-space threshold", &m.LowSpaceThreshold)
	c.Number32("election timeout", &m.ElectionTimeout)
	c.Number32("fixed election timeout", &m.ElectionTimeoutFixed)
}

func (s *Upgrade) code(c *coder) { c.Number32("version", &s.Version) }

func (d *Digest) code(c *coder) {
	c.Text("node", &d.Node)
	record.Number(&c.Coder, "index", &d.Index)
	record.Number(&c.Coder, "value", &d.Value)
}

func (s *SetLongestTTL) code(c *coder) { c.Signed("ttl", &s.TTL) }

func (c *coder) ticket(id *session.ID, ticket, ackedThrough *uint64) {
	record.Number(&c.Coder, "session", id)
	record.Number(&c.Coder, "ticket", ticket)
	record.Number(&c.Coder, "acked through", ackedThrough)
}

func (c *coder) codeItems(items *[]Item) {
	n := c.Count("items", len(*items), EntryBytesMax, itemBytesMin)
	if c.Reading() {
		*items = nil
		if n == 0 {
			return
		}
		first := len(c.items)
		c.items = slices.Grow(c.items, n)[:first+n]
		// Its capacity ends with it: appending to one acquisition's items can't write into the
		// next's.
		*items = c.items[first : first+n : first+n]
	}
	for i := range *items {
		item := &(*items)[i]
		c.Text("name", &item.Name)
		record.Byte(&c.Coder, "mode", &item.Mode)
		c.Number32("permits", &item.Permits)
		c.Number32("of", &item.Of)
		if c.Err() != nil {
			c.Wrap("item %d", i+1)
			*items = nil
			return
		}
	}
}
