package fsm

import (
	"bytes"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/fsm/record"
	"zamok/session"
)

// entryHead is encoding 1, state version 1, epoch 5, now 7 and no renewals; the commands come next.
const entryHead = "01 01 05 07 00 "

// Each of these has the right checksum: it was encoded so.
func TestDecodeErrors(t *testing.T) {
	for _, c := range []struct{ bytes, fault string }{
		{"02 01 05 07 00 00", "version 2 is unknown: this binary reads version 1"},
		{"01 8080808010 05 07 00 00", "version: 4294967296 is above 4294967295"},
		{"01 8100 05 07 00 00", "version: the number is not in its shortest form"},
		{"01 01 ffffffffffffffffff02 07 00 00", "epoch: the number has more than 64 bits"},
		{"01 01 05 80808080808080808001 00 00",
			"now: 9223372036854775808 is above 9223372036854775807"},
		{"01 01 05 07 ffff", "renewals: the bytes end too early"},
		{"01 01 05 07 05 01 01", "renewals: 5 are announced and 2 bytes are left"},
		{"01 01 05 07 02 09 00 00", "renewal 2: session: it is not above the one before"},
		{"01 01 05 07 02 05 ffffffffffffffffff01 00",
			"renewal 2: session: it is not above the one before"},
		{"01 01 05 07 02 09 80", "renewal 2: session: the bytes end too early"},
		{"01 01 05 07 01 8000", "renewal 1: session: the number is not in its shortest form"},
		{"01 01 05 07 01 09", "commands: the bytes end too early"},
		{entryHead + "02 0c 02", "commands: 2 are announced and 2 bytes are left"},
		{entryHead + "02 06 01 02 03", "commands: 2 are announced and the bytes end after 1"},
		{entryHead + "01 0c 02 00", "1 bytes are left over"},
		{entryHead + "00 00", "1 bytes are left over"},
		{entryHead + "01 00 01", "command 1: op 0: op: no command has this number"},
		{entryHead + "02 0c 02 12 01", "command 2: op 18: op: no command has this number"},
		{entryHead + "01 01 010203",
			"command 1: open session: secret: it has 32 bytes and 3 are left"},
		{entryHead + "01 01" + strings.Repeat("11", 32) + "00 05 6162",
			"command 1: open session: label: 5 bytes are announced and 2 are left"},
		{entryHead + "01 02 01", "command 1: attach: secret: it has 32 bytes and 0 are left"},
		{entryHead + "01 03 01 02",
			"command 1: release on disconnect: index: the bytes end too early"},
		{entryHead + "01 04 8100",
			"command 1: close session: session: the number is not in its shortest form"},
		{entryHead + "01 05 01 01 00 46 00000000 00000000",
			"command 1: acquire: items: 70 are announced and 8 bytes are left"},
		{entryHead + "01 05 01 01 00 02 0161 01 00 00 0962 01 00 00",
			"command 1: acquire: item 2: name: 9 bytes are announced and 4 are left"},
		{entryHead + "01 05 01 01 00 01 0161 03 8080808010 01",
			"command 1: acquire: item 1: permits: 4294967296 is above 4294967295"},
		{entryHead + "01 05 01 01 00 01 0161 03 01 8080808010",
			"command 1: acquire: item 1: of: 4294967296 is above 4294967295"},
		{entryHead + "01 05 01 01 00 01 0161 01 00 00 8000",
			"command 1: acquire: wait: the number is not in its shortest form"},
		{entryHead + "02 0c 02 05 01 01 00 00 00 00 00 01",
			"command 2: acquire: meta: 1 bytes are announced and 0 are left"},
		{entryHead + "01 06 01 02", "command 1: drop: acked through: the bytes end too early"},
		{entryHead + "01 07 01", "command 1: downgrade: ticket: the bytes end too early"},
		{entryHead + "01 10 01", "command 1: unrenewed drop: ticket: the bytes end too early"},
		{entryHead + "01 11 80", "command 1: withdraw session: session: the bytes end too early"},
		{entryHead + "01 08 0161 05", "command 1: force release: reason: the bytes end too early"},
		{entryHead + "01 09 05 ffffffffffffffffff01",
			"command 1: expire session: reason: 18446744073709551615 bytes are announced and 0 " +
				"are left"},
		{entryHead + "01 0a 00 01 aabb",
			"command 1: leader start: cluster: it has 16 bytes and 2 are left"},
		{entryHead + "01 0b 00 aabb",
			"command 1: member: incarnation: it has 16 bytes and 2 are left"},
		{entryHead + "01 0b 00" + strings.Repeat("22", 16) + "00 00 00 00 8080808010 01 00 00",
			"command 1: member: version min: 4294967296 is above 4294967295"},
		{entryHead + "01 0c 8080808010",
			"command 1: upgrade: version: 4294967296 is above 4294967295"},
		{entryHead + "01 0d 00 01 80", "command 1: digest: value: the bytes end too early"},
		{entryHead + "01 0e 80", "command 1: set longest ttl: ttl: the bytes end too early"},
		{entryHead + "01 0f 01 02 03 8080808010",
			"command 1: set quotas: share: 4294967296 is above 4294967295"},
	} {
		b := record.AppendChecksum(unhex(t, c.bytes), 0)
		e, err := DecodeEntry(b)
		assert.EqualError(t, err, "not an entry: "+c.fault, c.bytes)
		assert.Zero(t, e)

		into := decoded{}
		rich := richEntry()
		require.NoError(t, decodeEntry(rich.Append(nil), &into))
		assert.EqualError(t, decodeEntry(b, &into), c.fault)
		assert.Empty(t, into.entry.Commands, "nothing of a refused entry may be acted upon")
		assert.Empty(t, into.entry.Renewals)
	}
}

func TestEntryLimits(t *testing.T) {
	largest := Entry{Commands: []Command{&ExpireSession{Session: 1}}}
	// a long text's length takes two bytes more
	room := EntryBytesMax - len(largest.Append(nil)) - 2
	largest.Commands[0] = &ExpireSession{Session: 1, Reason: strings.Repeat("x", room)}
	require.Len(t, largest.Append(nil), EntryBytesMax)

	busiest := Entry{Commands: slices.Repeat([]Command{&Upgrade{}}, CommandsMax)}
	broadest := Entry{}
	for i := range RenewalsMax {
		broadest.Renewals = append(broadest.Renewals, session.ID(i))
	}
	for _, e := range []Entry{largest, busiest, broadest} {
		got, err := DecodeEntry(e.Append(nil))
		require.NoError(t, err)
		assert.True(t, bytes.Equal(e.Append(nil), got.Append(nil)))
	}

	largest.Commands[0].(*ExpireSession).Reason += "x"
	busiest.Commands = append(busiest.Commands, &Upgrade{})
	broadest.Renewals = append(broadest.Renewals, RenewalsMax)
	for _, c := range []struct {
		bytes []byte
		fault string
	}{
		{largest.Append(nil), "1048577 bytes are more than the 1048576 that an entry may have"},
		{busiest.Append(nil), "commands: 4097 are more than the 4096 that an entry may have"},
		{broadest.Append(nil), "renewals: 65537 are more than the 65536 that an entry may have"},
		{nil, "0 bytes are less than the 10 that an entry has"},
		{make([]byte, 9), "9 bytes are less than the 10 that an entry has"},
		{make([]byte, 10), "version 0 is unknown: this binary reads version 1"},
		{append(unhex(t, entryHead+"00"), 1, 2, 3, 4),
			"damaged: the checksum is 04030201 and should be 529c871d"},
	} {
		assert.EqualError(t, decodeEntry(c.bytes, new(decoded)), c.fault)
	}
}

// What Append can't express, it gives a form that is refused: never that of another entry.
func TestUnencodableEntryIsRefused(t *testing.T) {
	for _, c := range []struct {
		entry Entry
		fault string
	}{
		{Entry{Reading: clock.Reading{Now: -1}},
			"now: 18446744073709551615 is above 9223372036854775807"},
		{Entry{Renewals: []session.ID{4, 4}}, "renewal 2: session: it is not above the one before"},
		{Entry{Renewals: []session.ID{9, 4}}, "renewal 2: session: it is not above the one before"},
	} {
		assert.EqualError(t, decodeEntry(c.entry.Append(nil), new(decoded)), c.fault)
	}
	assert.Panics(t, func() { (&Entry{Commands: []Command{nil}}).Append(nil) })
}

func TestDamagedEntryIsRefused(t *testing.T) {
	rich := richEntry()
	whole := rich.Append(nil)
	var d decoded
	for cut := range whole {
		require.Errorf(t, decodeEntry(whole[:cut], &d), "cut to %d bytes", cut)
	}
	forEachByteChange(whole, func(b []byte, at int) {
		require.Errorf(t, decodeEntry(b, &d), "byte %d is %#x", at, b[at])
	})
}

// With a checksum that fits, a change may make another entry, but never a second form of one.
func TestEncodingIsCanonical(t *testing.T) {
	rich := richEntry()
	body := rich.Append(nil)
	body = body[: len(body)-record.ChecksumBytes : len(body)-record.ChecksumBytes]
	var d decoded
	var sealed, again []byte
	accepted := 0
	forEachByteChange(body, func(b []byte, at int) {
		sealed = record.AppendChecksum(append(sealed[:0], b...), 0)
		if decodeEntry(sealed, &d) != nil {
			return
		}
		accepted++
		again = d.entry.Append(again[:0])
		require.Truef(t, bytes.Equal(sealed, again), "byte %d is %#x", at, b[at])
	})
	assert.NotZero(t, accepted)
}

func TestEntryPrefixIsRefused(t *testing.T) {
	var d decoded
	for _, g := range goldenEntries() {
		whole := g.entry.Append(nil)
		for cut := range len(whole) - record.ChecksumBytes {
			b := record.AppendChecksum(bytes.Clone(whole[:cut]), 0)
			require.Errorf(t, decodeEntry(b, &d), "%s, cut to %d bytes", g.title, cut)
		}
	}
}

// forEachByteChange changes b in one byte at a time: into all others, or in short tests by one bit.
func forEachByteChange(b []byte, try func(b []byte, at int)) {
	for at, old := range b {
		for change := 1; change < 256; change++ {
			if testing.Short() && change&(change-1) != 0 {
				continue
			}
			b[at] = old ^ byte(change)
			try(b, at)
		}
		b[at] = old
	}
}

// FuzzDecodeEntry shows that an entry that can be decoded can be applied. It is given what stands
// before the checksum, so that it need not guess one.
func FuzzDecodeEntry(f *testing.F) {
	for _, g := range goldenEntries() {
		b := g.entry.Append(nil)
		f.Add(b[:len(b)-record.ChecksumBytes])
	}
	rich := richEntry()
	before := rich.Append(nil)
	f.Fuzz(func(t *testing.T, body []byte) {
		_, _ = DecodeEntry(body) // as it comes: it must not panic
		b := record.AppendChecksum(bytes.Clone(body), 0)
		e, err := DecodeEntry(b)

		var reused decoded
		require.NoError(t, decodeEntry(before, &reused))
		again := decodeEntry(b, &reused)
		if err != nil {
			require.EqualError(t, err, fmt.Sprintf("not an entry: %v", again))
			return
		}
		require.NoError(t, again)
		require.NoError(t, new(Checker).Check(b))
		// what passes the check of the leader ends no node, but for an upgrade
		if _, err := New().Apply(1, b); err != nil {
			require.IsType(t, &VersionError{}, err)
		}
		require.Equal(t, b, e.Append(nil))
		require.Equal(t, b, reused.entry.Append(nil))
	})
}

// A slice that grows while it is filled must not spoil what was already given out.
func TestDecodedCommandsSurviveSliceGrowth(t *testing.T) {
	var want Entry
	for range CommandsMax / len(everyCommand()) {
		want.Commands = append(want.Commands, everyCommand()...)
	}
	got, err := DecodeEntry(want.Append(nil))
	require.NoError(t, err)
	assert.Equal(t, want, got)
}

func TestDecodedItemsDoNotAlias(t *testing.T) {
	e := Entry{Commands: []Command{
		&Acquire{Session: 1, Ticket: 1, Items: []Item{{Name: "a", Mode: Exclusive}}},
		&Acquire{Session: 1, Ticket: 2, Items: []Item{{Name: "b", Mode: Shared}}},
	}}
	var d decoded
	for range 2 { // the second time there is room behind the first one's items
		require.NoError(t, decodeEntry(e.Append(nil), &d))
	}
	first, second := d.entry.Commands[0].(*Acquire), d.entry.Commands[1].(*Acquire)
	_ = append(first.Items, Item{Name: "intruder"})
	assert.Equal(t, []Item{{Name: "b", Mode: Shared}}, second.Items)
}

func TestDecoderResetsBetweenEntries(t *testing.T) {
	var d decoded
	e := richEntry()
	require.NoError(t, decodeEntry(e.Append(nil), &d))
	require.NoError(t, decodeEntry((&Entry{}).Append(nil), &d))
	assert.Empty(t, d.entry.Renewals)
	assert.Empty(t, d.entry.Commands)
	assert.Empty(t, d.opens)
	assert.Empty(t, d.attaches)
	assert.Empty(t, d.closes)
	assert.Empty(t, d.acquires)
	assert.Empty(t, d.coder.items)
	assert.Empty(t, d.drops)

	// Nor does room that is not used hold on to texts.
	for _, c := range d.entry.Commands[:cap(d.entry.Commands)] {
		assert.Nil(t, c)
	}
	for _, c := range d.opens[:cap(d.opens)] {
		assert.Zero(t, c)
	}
	for _, c := range d.acquires[:cap(d.acquires)] {
		assert.Zero(t, c)
	}
	for _, c := range d.coder.items[:cap(d.coder.items)] {
		assert.Zero(t, c)
	}
}

// pairsEntry is a batch as a busy cluster writes it: each pair takes one lock and drops it.
func pairsEntry(pairs int) Entry {
	e := Entry{Version: 1, Reading: clock.Reading{Epoch: 1 << 50, Now: clock.Time(clock.Hour)}}
	for i := range pairs {
		id := session.ID(1<<50 + i)
		e.Commands = append(e.Commands,
			&Acquire{
				Session: id, Ticket: 300, AckedThrough: 299,
				Items: []Item{{Name: fmt.Sprintf("account/%012d", i), Mode: Exclusive}},
				Wait:  5 * clock.Second, MaxHold: Forever,
			},
			&Drop{Session: id, Ticket: 300, AckedThrough: 299})
	}
	return e
}

func TestDecodeAllocatesOnlyStrings(t *testing.T) {
	pairs := pairsEntry(128)
	noTexts := Entry{Renewals: []session.ID{3, 4, 5}}
	for range 100 {
		noTexts.Commands = append(noTexts.Commands, &Attach{Session: 1}, &CloseSession{Session: 1},
			&Drop{Session: 1}, &Downgrade{Session: 1}, &Acquire{Session: 1, Items: make([]Item, 3)},
			&OpenSession{})
	}
	for _, c := range []struct {
		name      string
		entry     Entry
		allocsMax float64
	}{
		{"128 names", pairs, 128},
		{"no texts", noTexts, 0},
		{"an empty entry", Entry{}, 0},
	} {
		b := c.entry.Append(nil)
		var d decoded
		fault := decodeEntry(b, &d) // makes room
		allocs := testing.AllocsPerRun(20, func() { fault = decodeEntry(b, &d) })
		assert.NoError(t, fault)
		assert.LessOrEqual(t, allocs, c.allocsMax, c.name)
		appending := testing.AllocsPerRun(20, func() { b = c.entry.Append(b[:0]) })
		assert.LessOrEqual(t, appending, 1., "%s: a coder, however long the entry is", c.name)
	}
}

// Memory is made for what is there, whatever is announced.
func TestDecodeMemoryIsProportionalToInput(t *testing.T) {
	const factor, slack = 64, 16 << 10
	most := func(c Command) Entry {
		return Entry{Commands: slices.Repeat([]Command{c}, CommandsMax)}
	}
	renewals := Entry{}
	for i := range RenewalsMax {
		renewals.Renewals = append(renewals.Renewals, session.ID(i))
	}
	inputs := map[string][]byte{
		"renewals that are not there": record.AppendChecksum(unhex(t, "01 01 05 07 ffff03 00"), 0),
		"commands that are not there": record.AppendChecksum(unhex(t, entryHead+"8020"), 0),
		"items that are not there": record.AppendChecksum(
			unhex(t, entryHead+"01 05 01 01 00 ffffffff0f"), 0),
		"a text that is not there": record.AppendChecksum(
			unhex(t, entryHead+"01 09 05 ffffffff0f"), 0),
		"renewals": renewals.Append(nil),
	}
	manyItems := Entry{
		Commands: []Command{&Acquire{Items: make([]Item, EntryBytesMax/itemBytesMin-8)}}}
	inputs["items"] = manyItems.Append(nil)
	for _, c := range []Command{
		&OpenSession{}, &Attach{}, &ReleaseOnDisconnect{}, &CloseSession{}, &Acquire{}, &Drop{},
		&Downgrade{},
		&ForceRelease{}, &ExpireSession{}, &LeaderStart{}, &Member{}, &Upgrade{}, &Digest{},
		&SetLongestTTL{}, &SetQuotas{}, &DropUnrenewed{},
		&WithdrawSession{},
		&Acquire{Items: make([]Item, 1)}, &Acquire{Items: []Item{{Name: "ab"}, {Name: "cd"}}},
		&ExpireSession{Reason: "ab"},
	} {
		e := most(c)
		inputs[fmt.Sprintf("%T %+[1]v", c)] = e.Append(nil)
	}
	for name, b := range inputs {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		e, err := DecodeEntry(b)
		runtime.ReadMemStats(&after)
		allocated := after.TotalAlloc - before.TotalAlloc
		assert.LessOrEqualf(t, allocated, uint64(factor*len(b)+slack), "%s: %d bytes (%v)", name,
			len(b), err)
		runtime.KeepAlive(e)
	}
}

// The machine copies what it keeps: its state does not change when the memory of the entry does.
func TestMachineDoesNotAliasDecoder(t *testing.T) {
	b := newHarness(t)
	id := b.do(0, &OpenSession{Secret: session.Hash{1},
		Settings: session.Settings{TTL: clock.Hour}}).Results[0].Session
	for i := range uint64(8) {
		b.do(0, &Acquire{
			Session: id, Ticket: i + 1, Wait: Forever, MaxHold: Forever,
			Items: []Item{{Name: "a", Mode: Shared}, {Name: fmt.Sprint("b", i/2), Mode: Exclusive}},
		})
	}
	other := Entry{Version: math.MaxUint32}
	for range 8 {
		other.Commands = append(other.Commands, everyCommand()...)
	}
	b.apply(other) // overwrites all that was lent, is itself refused, and Check looks at everything
	assert.Equal(t, OtherVersion, b.apply(other).Refused)
}

func BenchmarkDecodePairs(b *testing.B) {
	e := pairsEntry(128)
	in := e.Append(nil)
	var d decoded
	b.ReportAllocs()
	b.SetBytes(int64(len(in)))
	for b.Loop() {
		if err := decodeEntry(in, &d); err != nil {
			b.Fatal(err)
		}
	}
	perCommand(b, len(e.Commands))
}

func BenchmarkAppendPairs(b *testing.B) {
	e := pairsEntry(128)
	var out []byte
	b.ReportAllocs()
	for b.Loop() {
		out = e.Append(out[:0])
	}
	b.SetBytes(int64(len(out)))
	perCommand(b, len(e.Commands))
}

func perCommand(b *testing.B, commands int) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(commands), "ns/command")
}
