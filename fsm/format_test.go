package fsm

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/fsm/record"
)

// dropWith is a Drop that has something more.
type dropWith struct {
	Drop
	more func(*coder)
}

func (d *dropWith) code(c *coder) {
	d.Drop.code(c)
	d.more(c)
}

// What two binaries must have in common changes the format, whether its author remembers that or
// not.
func TestFormatFollowsTheCode(t *testing.T) {
	limits := limitsSource + quotaSource
	seen := map[string]string{}
	differs := func(name string, commands []commandKind,
		records []func(*snapshotReader, *coder) error, limits string) {
		t.Helper()
		description := describeFormat(commands, records, limits)
		other, twice := seen[description]
		assert.False(t, twice, "%s has the format of %s", name, other)
		seen[description] = name
	}
	differs("this binary", commandKinds[:], recordReaders[:], limits)
	require.Equal(t, Format(), format)
	require.Len(t, Format(), 16)

	differs("another command",
		append(slices.Clone(commandKinds[:]),
			kind("pause", func(*decoded) *Digest { return new(Digest) })), recordReaders[:], limits)
	differs("a command less", commandKinds[:len(commandKinds)-1], recordReaders[:], limits)
	moved := slices.Clone(commandKinds[:])
	moved[6], moved[7] = moved[7], moved[6]
	differs("two commands exchanged", moved, recordReaders[:], limits)
	var number uint64
	var number32 uint32
	for name, more := range map[string]func(*coder){
		"a number more":           func(c *coder) { record.Number(&c.Coder, "more", &number) },
		"another name":            func(c *coder) { record.Number(&c.Coder, "other", &number) },
		"another bound":           func(c *coder) { c.Number32("more", &number32) },
		"a span that may be none": func(c *coder) { c.Signed("more", new(clock.Span)) },
		"a text":                  func(c *coder) { c.Text("more", new(string)) },
		"raw bytes":               func(c *coder) { c.Raw("more", make([]byte, 4)) },
		"more raw bytes":          func(c *coder) { c.Raw("more", make([]byte, 8)) },
		"items":                   func(c *coder) { c.codeItems(new([]Item)) },
	} {
		changed := slices.Clone(commandKinds[:])
		changed[6] = kind("drop", func(*decoded) *dropWith { return &dropWith{more: more} })
		differs("a field of a command: "+name, changed, recordReaders[:], limits)
	}

	read := func(s *snapshotReader, c *coder) error {
		c.Text("more", new(string))
		return nil
	}
	differs("another record of a snapshot", commandKinds[:],
		append(slices.Clone(recordReaders[:]), read), limits)
	wider := slices.Clone(recordReaders[:])
	wider[recDelay] = func(s *snapshotReader, c *coder) error {
		_ = s.readDelay(c)
		return read(s, c)
	}
	differs("a field of a record", commandKinds[:], wider, limits)

	differs("another limit", commandKinds[:], recordReaders[:], limits+"\nconst MoreMax = 7\n")
	differs("a limit changed", commandKinds[:], recordReaders[:],
		strings.Replace(limits, "NameBytesMax     = 512 ", "NameBytesMax     = 513 ", 1))
	differs("a cost changed", commandKinds[:], recordReaders[:],
		strings.Replace(limits, "SessionBytes = 512", "SessionBytes = 511", 1))
	words := strings.Replace(limits, "NameBytesMax     = 512  //",
		"NameBytesMax = 512 // or so:", 1)
	require.NotEqual(t, limits, words)
	words = strings.ReplaceAll(words, `"zamok/`, `"example.org/you/zamok/`)
	_, same := seen[describeFormat(commandKinds[:], recordReaders[:], "// In other words\n"+words)]
	assert.True(t, same, "comments, blanks and the paths of packages are no part of the format")
}

// The description has each command and each record with its fields: what is visited with zeros is
// what is visited at all.
func TestFormatDescribesEverything(t *testing.T) {
	description := describeFormat(commandKinds[:], recordReaders[:], "")
	for _, c := range everyCommand() {
		require.Contains(t, description,
			fmt.Sprintf("\n%s %d\n\"", commandKinds[opOf(c)].name, opOf(c)))
	}
	for _, field := range []string{"secret", "mode", "max hold", "hold until", "share"} {
		require.Contains(t, description, "\n\""+field+"\" ")
	}
	require.Equal(t, 2, strings.Count(description, "\"items\" count"),
		"of a ticket and of an acquisition")
}

// A snapshot of a binary with other records is not damaged, whatever of it can be read; one with a
// flipped bit is.
func TestASnapshotOfAnotherBinaryIsNotDamaged(t *testing.T) {
	whole := snapshotOf(t, populatedMachine(t))
	body := whole[:len(whole)-record.ChecksumBytes]
	end := body[len(body)-recordHeadBytes:]
	require.Equal(t, byte(recEnd), end[0])
	rest := body[len(snapshotMagic)+1:]
	for name, other := range map[string][]byte{
		"another record": slices.Concat(body[:len(body)-recordHeadBytes],
			[]byte{byte(recEnd), 3, 0, 1, 2, 3, byte(recEnd) + 1, 0, 0}),
		"a record in another order": slices.Concat(body[:len(body)-recordHeadBytes], rest),
		"records of greater length": slices.Concat(body[:len(snapshotMagic)+1],
			[]byte{byte(recHeader), 0xff, 0xff}, rest),
		"a field more": slices.Concat(body[:len(body)-recordHeadBytes],
			[]byte{byte(recEnd), 1, 0, 7}),
		"another version": slices.Concat([]byte(snapshotMagic),
			[]byte{snapshotVersion + 1}, rest),
	} {
		b := record.AppendChecksum(bytes.Clone(other), 0)
		_, err := Restore(readerOnly(b))
		var format *FormatError
		require.ErrorAs(t, err, &format, name)
		require.Regexp(t, "^the snapshot is not of the format of this binary, "+Format()+
			": .*start the binary that wrote it", err, name)
		require.NotContains(t, err.Error(), "damaged", name)

		b[len(b)/2] ^= 4
		_, err = Restore(readerOnly(b))
		require.NotErrorAs(t, err, &format, name)
		require.ErrorContains(t, err, "damaged", name)
	}
}
