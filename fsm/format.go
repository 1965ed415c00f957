package fsm

import (
	_ "embed"
	"fmt"
	"hash/fnv"
	"strings"

	"zamok/fsm/record"
)

// # The format
//
// A binary's format is a hash of all that two binaries must have in common to read each other's
// entries and snapshots in the same way: the commands and records with their fields, as decoding
// visits them, and the limits and costs, as limits.go and quota.go have them. Nobody has to
// remember to change it. Nodes of different formats share neither a cluster nor a directory
// (packages peer and store), so that no entry reaches a binary that does not know it. Apply and
// Restore still stop at one.

//go:embed limits.go
var limitsSource string

//go:embed quota.go
var quotaSource string

var format = hash(
	describeFormat(commandKinds[:], recordReaders[:], limitsSource+quotaSource))

func hash(text string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text)) // never an error
	return fmt.Sprintf("%016x", h.Sum64())
}

// Format names the format of this binary.
func Format() string { return format }

// FormatError means that this binary can't read an entry or an undamaged snapshot. Nothing of it
// has been applied.
type FormatError struct {
	What  string // it is
	Fault error
}

func (e *FormatError) Error() string {
	return fmt.Sprintf(
		"%s is not of the format of this binary, %s: %v; nothing of it was applied; start the "+
			"binary that wrote it (\"zamok version\" prints the format of a binary)", e.What,
		Format(), e.Fault)
}

func (e *FormatError) Unwrap() error { return e.Fault }

// describeFormat lists what the format is made of. A record is described by the function that reads
// it, which is given zeros.
func describeFormat(commands []commandKind, records []func(*snapshotReader, *coder) error,
	limits string) string {
	c := coder{Coder: record.NewDescriber(nil)}
	title := func(title string, number int) {
		c.Coder = record.NewDescriber(fmt.Appendln(c.Bytes(), title, number))
	}
	title("entry", entryVersion)
	new(Entry).codeHead(&c)
	for number, kind := range commands {
		if kind.zero != nil {
			title(kind.name, number)
			kind.zero(new(decoded)).code(&c)
		}
	}
	title("snapshot", snapshotVersion)
	for kind, read := range records {
		if title("record", kind); read != nil {
			_ = read(&snapshotReader{m: New()}, &c) // zeros make no sense
		}
	}
	title("digest: the checksum of a snapshot", digestVersion)
	title("reasons", int(ReasonCount))
	for line := range strings.Lines(limits) {
		code, _, _ := strings.Cut(line, "//")
		// a path of an import is where the code is from
		if words := strings.Fields(code); len(words) > 0 && words[0][0] != '"' {
			c.Coder = record.NewDescriber(fmt.Appendln(c.Bytes(), strings.Join(words, " ")))
		}
	}
	return string(c.Bytes())
}
