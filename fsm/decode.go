package fsm

import (
	"fmt"
	"slices"

	"zamok/session/record"
)

// DecodeEntry reads an entry into memory of its own: for tools and tests. An error names the part that is not of the
// form; commands, items and renewals are counted from 1 there.
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
// Commands of clients, of which an entry has hundreds, are in slices by kind; the few of nodes and operators have memory
// of their own, which events may keep. A slice that must grow moves to a larger array, and earlier pointers keep the old
// one, which does not change any more: so they stay valid.
type decoded struct {
	entry Entry

	coder    coder
	opens    []OpenSession
	attaches []Attach
	closes   []CloseSession
	acquires []Acquire
	drops    []Drop // and downgrades
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
		return fmt.Errorf("%d bytes are more than the %d that an entry may have", len(b), EntryBytesMax)
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

// reset empties d and keeps its memory. Texts are cleared, or a slot that is seldom reached would keep a long name or
// metadata alive for as long as the state machine.
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
	n := r.Count("commands", 0, commandBytesMin)
	if n > CommandsMax {
		r.Fail("commands", "%d are more than the %d that an entry may have", n, CommandsMax)
		return
	}
	commands := slices.Grow(d.entry.Commands, n)
	for i := range n {
		if r.Remaining() == 0 {
			r.Fail("commands", "%d are announced and the bytes end after %d", n, i)
			return
		}
		var o op
		record.Byte(&r.Coder, "op", &o)
		if !o.exists() {
			r.Fail("op", "no command has this number")
			r.Wrap("command %d: %v", i+1, o)
			return
		}
		c := commandKinds[o].zero(d)
		if c.code(r); r.Err() != nil {
			r.Wrap("command %d: %v", i+1, o)
			return
		}
		commands = append(commands, c)
	}
	d.entry.Commands = commands
}

// commandKinds are the commands by op: their names in errors, and the memory of decoded ones.
var commandKinds = [opEnd]struct {
	name string
	zero func(*decoded) Command
}{
	opOpenSession:   {"open session", func(d *decoded) Command { return appendZero(&d.opens) }},
	opAttach:        {"attach", func(d *decoded) Command { return appendZero(&d.attaches) }},
	opDetached:      {"detached", func(*decoded) Command { return new(Detached) }},
	opCloseSession:  {"close session", func(d *decoded) Command { return appendZero(&d.closes) }},
	opAcquire:       {"acquire", func(d *decoded) Command { return appendZero(&d.acquires) }},
	opDrop:          {"drop", func(d *decoded) Command { return appendZero(&d.drops) }},
	opDowngrade:     {"downgrade", func(d *decoded) Command { return (*Downgrade)(appendZero(&d.drops)) }},
	opForceRelease:  {"force release", func(*decoded) Command { return new(ForceRelease) }},
	opExpireSession: {"expire session", func(*decoded) Command { return new(ExpireSession) }},
	opLeaderStart:   {"leader start", func(*decoded) Command { return new(LeaderStart) }},
	opMember:        {"member", func(*decoded) Command { return new(Member) }},
	opSetVersion:    {"set version", func(*decoded) Command { return new(SetVersion) }},
	opDigest:        {"digest", func(*decoded) Command { return new(Digest) }},
}

// exists reports whether a command has this number.
func (o op) exists() bool { return o > 0 && o < opEnd }

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
