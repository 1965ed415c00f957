package fsm

import (
	"fmt"
	"slices"

	"zamok/fsm/record"
)

// DecodeEntry reads an entry into memory of its own: for tools and tests. An error names the part
// that is not of the form; commands, items and renewals are counted from 1 there.
func DecodeEntry(b []byte) (Entry, error) {
	var d decoded
	if err := decodeEntry(b, &d); err != nil {
		return Entry{}, fmt.Errorf("not an entry: %w", err)
	}
	return d.entry, nil
}

// Checker decodes entries as Apply does, into memory that it uses again.
type Checker struct{ in decoded }

// Check returns the error of Apply for an entry that can't be decoded: a *FormatError unless it is
// damaged.
func (c *Checker) Check(entry []byte) error {
	defer c.in.reset()
	return c.in.read(entry)
}

// read is decodeEntry for bytes of which it is known that they were an entry.
func (d *decoded) read(entry []byte) error {
	fault := decodeEntry(entry, d)
	if fault == nil {
		return nil
	}
	if _, damaged := record.VerifyChecksum(entry); damaged != nil {
		return fmt.Errorf("not an entry: %w; nothing of it was applied", damaged)
	}
	return &FormatError{"the entry", fault}
}

// decoded is an entry whose memory the next entry uses again: Renewals, Commands, what those point
// to and their Items are valid until then, and a caller that keeps one copies it. Texts are not
// reused and may be kept.
//
// Commands of clients, of which an entry has hundreds, are in slices by kind; the few of nodes and
// operators have memory of their own, which events may keep. A slice that must grow moves to a
// larger array, and earlier pointers keep the old one, which does not change any more: so they stay
// valid.
type decoded struct {
	entry Entry

	coder    coder
	opens    []OpenSession
	attaches []Attach
	closes   []CloseSession
	acquires []Acquire
	drops    []Drop // of each kind, and downgrades
}

// decodeEntry reads b into d and keeps nothing of b. After an error d is empty.
func decodeEntry(b []byte, d *decoded) (err error) {
	d.reset()
	defer func() {
		d.coder.Coder = record.Coder{} // drops the reference to b
		if err != nil {
			d.reset()
		}
	}()
	switch {
	case len(b) > EntryBytesMax:
		return fmt.Errorf("%d bytes are more than the %d that an entry may have", len(b),
			EntryBytesMax)
	case len(b) < entryBytesMin:
		return fmt.Errorf("%d bytes are less than the %d that an entry has", len(b), entryBytesMin)
	case b[0] != entryVersion:
		return fmt.Errorf("version %d is unknown: this binary reads version %d", b[0], entryVersion)
	}
	body, err := record.VerifyChecksum(b)
	if err != nil {
		return err
	}
	d.coder.Coder = record.NewReader(body[1:])
	d.entry.codeHead(&d.coder)
	d.readCommands(&d.coder)
	return d.coder.End()
}

// reset empties d and keeps its memory. Texts are cleared, or a slot that is seldom reached would
// keep a long name or meta alive for as long as the state machine.
func (d *decoded) reset() {
	clear(d.entry.Commands)
	d.entry = Entry{Renewals: d.entry.Renewals[:0], Commands: d.entry.Commands[:0]}
	truncate(&d.opens)
	truncate(&d.attaches)
	truncate(&d.closes)
	truncate(&d.acquires)
	truncate(&d.drops)
	truncate(&d.coder.items)
}

func truncate[T any](slice *[]T) {
	clear(*slice)
	*slice = (*slice)[:0]
}

func (d *decoded) readCommands(r *coder) {
	n := r.Count("commands", 0, CommandsMax, commandBytesMin)
	d.entry.Commands = slices.Grow(d.entry.Commands, n)
	for i := range n {
		if r.Remaining() == 0 {
			r.Fail("commands", "%d are announced and the bytes end after %d", n, i)
			return
		}
		var o op
		record.Byte(&r.Coder, "op", &o)
		if o.exists() {
			c := commandKinds[o].zero(d)
			c.code(r)
			d.entry.Commands = append(d.entry.Commands, c)
		} else {
			r.Fail("op", "no command has this number")
		}
		if r.Err() != nil {
			r.Wrap("command %d: %v", i+1, o)
			return
		}
	}
}

// op is a command's number in the form of an entry: its row in commandKinds.
type op uint8

// commandKind is what the form of an entry knows of a command.
type commandKind struct {
	name string                 // in errors
	zero func(*decoded) Command // the memory of a decoded one
	is   func(Command) bool
}

func kind[C Command](name string, zero func(*decoded) C) commandKind {
	return commandKind{
		name: name,
		zero: func(d *decoded) Command { return zero(d) },
		is:   func(c Command) bool { _, is := c.(C); return is },
	}
}

// commandKinds are the commands by op. The numbers are part of the log's format: never reuse one.
var commandKinds = [...]commandKind{
	1: kind("open session", func(d *decoded) *OpenSession { return appendZero(&d.opens) }),
	2: kind("attach", func(d *decoded) *Attach { return appendZero(&d.attaches) }),
	3: kind("release on disconnect",
		func(*decoded) *ReleaseOnDisconnect { return new(ReleaseOnDisconnect) }),
	4: kind("close session", func(d *decoded) *CloseSession { return appendZero(&d.closes) }),
	5: kind("acquire", func(d *decoded) *Acquire { return appendZero(&d.acquires) }),
	6: kind("drop", func(d *decoded) *Drop { return appendZero(&d.drops) }),
	7: kind("downgrade", func(d *decoded) *Downgrade {
		return (*Downgrade)(appendZero(&d.drops))
	}),
	8:  kind("force release", func(*decoded) *ForceRelease { return new(ForceRelease) }),
	9:  kind("expire session", func(*decoded) *ExpireSession { return new(ExpireSession) }),
	10: kind("leader start", func(*decoded) *LeaderStart { return new(LeaderStart) }),
	11: kind("member", func(*decoded) *Member { return new(Member) }),
	12: kind("upgrade", func(*decoded) *Upgrade { return new(Upgrade) }),
	13: kind("digest", func(*decoded) *Digest { return new(Digest) }),
	14: kind("set longest ttl", func(*decoded) *SetLongestTTL { return new(SetLongestTTL) }),
	15: kind("set quotas", func(*decoded) *SetQuotas { return new(SetQuotas) }),
	16: kind("unrenewed drop",
		func(d *decoded) *DropUnrenewed { return (*DropUnrenewed)(appendZero(&d.drops)) }),
	17: kind("withdraw session",
		func(d *decoded) *WithdrawSession { return (*WithdrawSession)(appendZero(&d.closes)) }),
}

func opOf(c Command) op {
	return op(1 + slices.IndexFunc(commandKinds[1:], func(k commandKind) bool { return k.is(c) }))
}

// exists reports whether a command has this number.
func (o op) exists() bool { return o > 0 && int(o) < len(commandKinds) }

// String is the command's name in errors.
func (o op) String() string {
	if !o.exists() {
		return fmt.Sprintf("op %d", uint8(o))
	}
	return commandKinds[o].name
}

// appendZero adds a zero value to a slice and returns a pointer to it.
func appendZero[T any](slice *[]T) *T {
	*slice = append(*slice, *new(T))
	return &(*slice)[len(*slice)-1]
}
