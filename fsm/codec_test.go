package fsm

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"zamok/clock"
	"zamok/fsm/record"
	"zamok/session"
)

var updateGolden = flag.Bool("update-golden", false,
	"write the golden files anew; a changed byte in one is a changed format, which needs a "+
		"reason in the commit, and from the first release on a new version")

// everyCommand has each command once, with every field set.
func everyCommand() []Command {
	return []Command{
		&OpenSession{Secret: sequentialBytes(0x10),
			Settings: session.Settings{Identity: "cn=till-7", Label: "till",
				Meta: "host=k4,pid=311", TTL: 10 * clock.Second, LockDelay: clock.Second,
				ReleaseOnDisconnect: 250 * clock.Millisecond}},
		&Attach{Session: 1<<50 + 3, Secret: sequentialBytes(0x10), AckedThrough: 17, Attempt: 300},
		&ReleaseOnDisconnect{Session: 1<<50 + 3, Attachment: 1<<50 + 9, Index: 1<<50 + 200},
		&CloseSession{Session: 1<<50 + 4},
		&Acquire{
			Session: 1<<50 + 3, Ticket: 18, AckedThrough: 17,
			Items: []Item{
				{Name: "account/200", Mode: Exclusive},
				{Name: "замок", Mode: Shared},
				{Name: "printers", Mode: Permits, Permits: 2, Of: 300},
			},
			Wait: 30 * clock.Second, MaxHold: Forever, Owner: "thread 4", Meta: "draw 150",
		},
		&Drop{Session: 1<<50 + 3, Ticket: 18, AckedThrough: 18},
		&Downgrade{Session: 1<<50 + 3, Ticket: 19, AckedThrough: 18},
		&ForceRelease{Name: "account/200", Token: 1<<50 + 77, Reason: "till 7 burned down"},
		&ExpireSession{Session: 1<<50 + 5, Reason: "no longer ours"},
		&LeaderStart{Node: "n2", Nonce: math.MaxUint64 - 1,
			Cluster: ClusterID(first16(sequentialBytes(0x50))), TokenBase: 1 << 50},
		&Member{
			ID: "n2", Incarnation: Incarnation(first16(sequentialBytes(0x70))),
			Client: "k4.example:5750", Peer: "k4.example:5751", HTTP: "k4.example:5752",
			Version: "v0.3.1", StateVersionMin: 1, StateVersionMax: 2, FreeBytes: 40 << 30,
			LowSpaceThreshold: 2 << 30, ElectionTimeout: 250, ElectionTimeoutFixed: 500,
		},
		&Upgrade{Version: 2},
		&Digest{Node: "n3", Index: 1<<50 + 4096, Value: 0xfedcba9876543210},
		&SetLongestTTL{TTL: 48 * clock.Hour},
		&SetQuotas{Quotas{Amounts{Sessions: 1000, Tickets: 50_000, Bytes: 64 << 20}, 30}},
		&DropUnrenewed{Session: 1<<50 + 3, Ticket: 20, AckedThrough: 19},
		&WithdrawSession{Session: 1<<50 + 6},
	}
}

// sequentialBytes is from, from+1, …
func sequentialBytes(from byte) (b [32]byte) {
	for i := range b {
		b[i] = from + byte(i)
	}
	return b
}

func first16(b [32]byte) [16]byte { return [16]byte(b[:16]) }

func richEntry() Entry {
	return Entry{
		Version:  1,
		Reading:  clock.Reading{Epoch: 1<<50 + 1, Now: clock.Time(90 * clock.Minute)},
		Renewals: []session.ID{7, 8, 300, 1<<50 + 3},
		Commands: everyCommand(),
	}
}

// oddEntry is of the right form, though no machine would do what it asks for.
func oddEntry() Entry {
	return Entry{
		Version:  math.MaxUint32,
		Reading:  clock.Reading{Epoch: math.MaxUint64, Now: math.MaxInt64},
		Renewals: []session.ID{0, 1, math.MaxUint64},
		Commands: []Command{
			&OpenSession{Settings: session.Settings{TTL: math.MinInt64, LockDelay: math.MaxInt64,
				ReleaseOnDisconnect: -2, Label: "\x00\xff"}},
			&Attach{}, &ReleaseOnDisconnect{}, &CloseSession{}, &Acquire{}, &Drop{}, &Downgrade{},
			&ForceRelease{}, &ExpireSession{}, &LeaderStart{}, &Member{}, &Upgrade{}, &Digest{},
			&SetLongestTTL{}, &SetQuotas{},
			&DropUnrenewed{}, &WithdrawSession{},
			&Acquire{
				Session: math.MaxUint64, Ticket: math.MaxUint64, AckedThrough: math.MaxUint64,
				Items: []Item{
					{}, {Name: "\xc3\x28", Mode: 9, Permits: math.MaxUint32, Of: math.MaxUint32},
					{Name: strings.Repeat("long ", NameBytesMax/5+1), Mode: math.MaxUint8},
				},
				Wait: math.MinInt64, MaxHold: math.MaxInt64,
			},
			&Acquire{Session: 1, Ticket: 1, Items: make([]Item, ItemsMax+1)},
		},
	}
}

func TestEveryCommandAndFieldIsCovered(t *testing.T) {
	commands := everyCommand()
	require.Len(t, commands, len(commandKinds)-1)
	for i, c := range commands {
		assert.Equal(t, op(i+1), opOf(c))
		assert.NotContains(t, opOf(c).String(), "op ", "it has no name for errors")
		v := reflect.ValueOf(c).Elem()
		for f := range v.NumField() {
			assert.Falsef(t, v.Field(f).IsZero(), "%T.%s", c, v.Type().Field(f).Name)
		}
	}
	for i, g := range arbitraryCommands() {
		assert.Equal(t, op(i+1), opOf(g.Example(0)))
	}
}

func TestEntryAppend(t *testing.T) {
	e := richEntry()
	alone := e.Append(nil)
	assert.Equal(t, append([]byte("before"), alone...), e.Append([]byte("before")))
}

// arbitraryCommands gives every value that each command can have.
func arbitraryCommands() []*rapid.Generator[Command] {
	return []*rapid.Generator[Command]{
		arbitrary[OpenSession](), arbitrary[Attach](), arbitrary[ReleaseOnDisconnect](),
		arbitrary[CloseSession](), arbitrary[Acquire](), arbitrary[Drop](), arbitrary[Downgrade](),
		arbitrary[ForceRelease](), arbitrary[ExpireSession](), arbitrary[LeaderStart](),
		arbitrary[Member](), arbitrary[Upgrade](), arbitrary[Digest](), arbitrary[SetLongestTTL](),
		arbitrary[SetQuotas](), arbitrary[DropUnrenewed](),
	}
}

func arbitrary[T any, P interface {
	*T
	Command
}]() *rapid.Generator[Command] {
	text := rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 24),
		func(b []byte) string { return string(b) })
	item := rapid.MakeCustom[Item](rapid.MakeConfig{
		Kinds: map[reflect.Kind]*rapid.Generator[any]{reflect.String: text.AsAny()},
	})
	items := rapid.Map(rapid.SliceOfN(item, 0, 6), func(items []Item) []Item {
		return slices.Clip(append([]Item(nil), items...)) // none is nil, as it is read
	})
	fields := rapid.MakeCustom[T](rapid.MakeConfig{
		Kinds: map[reflect.Kind]*rapid.Generator[any]{reflect.String: text.AsAny()},
		Types: map[reflect.Type]*rapid.Generator[any]{reflect.TypeFor[[]Item](): items.AsAny()},
	})
	return rapid.Map(fields, func(v T) Command { return P(&v) })
}

func arbitraryEntry() *rapid.Generator[Entry] {
	return rapid.Custom(func(t *rapid.T) Entry {
		renewals := rapid.SliceOfNDistinct(rapid.Uint64(), 0, 8, rapid.ID).Draw(t, "renewals")
		slices.Sort(renewals)
		e := Entry{
			Version: rapid.Uint32().Draw(t, "version"),
			Reading: clock.Reading{
				Epoch: rapid.Uint64().Draw(t, "epoch"),
				Now:   clock.Time(rapid.Int64Min(0).Draw(t, "now")),
			},
			Commands: rapid.SliceOfN(rapid.OneOf(arbitraryCommands()...), 0, 12).Draw(t,
				"commands"),
		}
		for _, id := range renewals {
			e.Renewals = append(e.Renewals, session.ID(id))
		}
		if len(e.Commands) == 0 {
			e.Commands = nil
		}
		return e
	})
}

func TestEncodeDecodeRoundTrip(t *testing.T) {
	var reused decoded
	rapid.Check(t, func(t *rapid.T) {
		want := arbitraryEntry().Draw(t, "entry")
		b := want.Append(nil)
		got, err := DecodeEntry(b)
		require.NoError(t, err)
		require.Equal(t, want, got)

		// The machine's way: into memory that held another entry before, and from bytes that are
		// another command's afterwards.
		scratch := bytes.Clone(b)
		require.NoError(t, decodeEntry(scratch, &reused))
		clear(scratch)
		require.Equal(t, b, reused.entry.Append(nil))
		require.Len(t, reused.entry.Commands, len(want.Commands))
		for i, c := range want.Commands {
			require.Equal(t, c, reused.entry.Commands[i])
		}
	})
}

// The golden file is the format as it was released, for people and for machines: a description,
// and below it the bytes.
func TestGoldenEntries(t *testing.T) {
	path := filepath.Join("testdata", "golden", "entry-v1.txt")
	var text strings.Builder
	text.WriteString("Entries of the log, version 1. The bytes of an entry are all the hex from " +
		"one title to the next.\n")
	entries := goldenEntries()
	for _, g := range entries {
		describeEntry(&text, g.title, &g.entry)
	}
	if *updateGolden {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text.String()), 0o644))
	}
	golden, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(golden), text.String())

	released := goldenBytes(t, string(golden))
	require.Len(t, released, len(entries))
	for i, g := range entries {
		assert.Equal(t, released[i], g.entry.Append(nil), g.title)
		got, err := DecodeEntry(released[i])
		require.NoError(t, err, g.title)
		assert.Equal(t, g.entry, got, g.title)
	}
}

type goldenEntry struct {
	title string
	entry Entry
}

func goldenEntries() []goldenEntry {
	return []goldenEntry{
		{"a checkpoint", Entry{Version: 1,
			Reading: clock.Reading{Epoch: 5, Now: clock.Time(clock.Second)}}},
		{"renewals alone", Entry{
			Version: 1, Reading: clock.Reading{Epoch: 5, Now: clock.Time(2 * clock.Second)},
			Renewals: []session.ID{1, 2, 130, 1 << 50, 1<<50 + 1},
		}},
		{"every command", richEntry()},
		{"odd and yet an entry", oddEntry()},
	}
}

// unhex reads bytes as tests write them: in hex, with blanks where they help the eye.
func unhex(tb testing.TB, text string) []byte {
	tb.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(text), ""))
	require.NoError(tb, err)
	return b
}

// commandBytes is a command as it stands in an entry.
func commandBytes(c Command) []byte {
	w := coder{Coder: record.NewWriter([]byte{byte(opOf(c))})}
	c.code(&w)
	return w.Bytes()
}

func describeEntry(w *strings.Builder, title string, e *Entry) {
	all := e.Append(nil)
	var commands [][]byte
	head := len(all) - record.ChecksumBytes
	for _, c := range e.Commands {
		b := commandBytes(c)
		commands = append(commands, b)
		head -= len(b)
	}
	fmt.Fprintf(w, "\n# %s\n\n", title)
	fmt.Fprintf(w, "encoding 1, state version %d, epoch %d, now %v, renewals %d, %d commands\n",
		e.Version, e.Reading.Epoch, e.Reading.Now, e.Renewals, len(commands))
	describeBytes(w, all[:head])
	for i, c := range e.Commands {
		v := reflect.ValueOf(c).Elem()
		fmt.Fprintf(w, "%s %s\n", v.Type().Name(), describe(v))
		describeBytes(w, commands[i])
	}
	w.WriteString("checksum\n")
	describeBytes(w, all[len(all)-record.ChecksumBytes:])
}

func describeBytes(w *strings.Builder, b []byte) {
	for line := range slices.Chunk(b, 32) {
		fmt.Fprintf(w, "\t% x\n", line)
	}
}

func describe(v reflect.Value) string {
	var parts []string
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			parts = append(parts, v.Type().Field(i).Name+"="+describe(v.Field(i)))
		}
		return "{" + strings.Join(parts, " ") + "}"
	case reflect.Slice:
		for i := range v.Len() {
			parts = append(parts, describe(v.Index(i)))
		}
		return "[" + strings.Join(parts, " ") + "]"
	case reflect.Array:
		return fmt.Sprintf("%x", v.Interface())
	case reflect.String:
		return fmt.Sprintf("%q", v)
	default:
		return fmt.Sprint(v)
	}
}

// goldenBytes are the indented lines below each title.
func goldenBytes(t *testing.T, golden string) (entries [][]byte) {
	for line := range strings.Lines(golden) {
		switch {
		case strings.HasPrefix(line, "# "):
			entries = append(entries, nil)
		case strings.HasPrefix(line, "\t"):
			last := &entries[len(entries)-1]
			*last = append(*last, unhex(t, line)...)
		}
	}
	return entries
}
