package store

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
)

// An ID is a random number of 128 bits; zero is none.
type ID [16]byte

// NewID draws an ID.
func NewID() ID {
	var id ID
	rand.Read(id[:]) // never fails: it ends the process instead
	return id
}

func (id ID) String() string { return hex.EncodeToString(id[:]) }

// MarshalText writes id as 32 hexadecimal digits.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads 32 hexadecimal digits.
func (id *ID) UnmarshalText(text []byte) error {
	if hex.DecodedLen(len(text)) != len(id) {
		return fmt.Errorf("%q is not 32 hexadecimal digits", text)
	}
	_, err := hex.Decode(id[:], text)
	return err
}

// Identity says who the node of a data directory is.
type Identity struct {
	// Format is the number of the directory's layout, and Contents Config.Format: what is in log
	// and snapshots.
	Format   int    `json:"format"`
	Contents string `json:"contents"`
	// Node is the node's id.
	Node string `json:"node"`
	// Incarnation is drawn once, when the directory is made. A node of the same
	// name with another incarnation has lost its disk, and must not vote.
	Incarnation ID `json:"incarnation"`
	// Initial are the initial members that this node has agreed to bootstrap a cluster
	// with, as package peer encodes them. They are on disk before the first entry
	// of the log is. Empty: the node has agreed to nothing, or joins.
	Initial string `json:"initial_members,omitempty"`
	// Bootstrapped is the marker: the node has been a member of a cluster, so
	// without a log it has lost data.
	Bootstrapped bool `json:"bootstrapped"`
	// Cluster is the id of the node's cluster, or, without the marker, of the one
	// that it waits to join; zero until it is known.
	Cluster ID `json:"cluster,omitzero"`
	// Timeout is that of the node's raft, in milliseconds; 0: it has the least.
	Timeout uint32 `json:"timeout,omitempty"`
}

// formatNow is the layout that this code writes, and the only one it reads.
const formatNow = 6

const identityName = "identity.json"

// readIdentity reads the identity; without one the error is fs.ErrNotExist.
func readIdentity(m medium) (id Identity, err error) {
	text, err := m.read(identityName)
	if err != nil {
		return id, err
	}
	path := m.path(identityName)
	body, fits := unsigned(text)
	if !fits {
		return id, Damaged(path, "it does not fit its checksum")
	}
	if err := json.Unmarshal(body, &id); err != nil {
		return id, Damaged(path, err.Error())
	}
	if id.Format != formatNow {
		return id, fmt.Errorf("store: %w: %s has layout %d, and this binary reads layout %d; "+
			"nothing was changed; start the binary that wrote it",
			ErrOtherFormat, path, id.Format, formatNow)
	}
	return id, nil
}

// writeIdentity replaces the identity, wholly or not at all, also across a crash.
func writeIdentity(m medium, id Identity) error {
	text, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return err
	}
	f, err := m.create(identityName)
	if err != nil {
		return err
	}
	f.Write(signed(text)) // commit reports its error
	return f.commit()
}

// checksumMember is the identity's last member, a checksum of all the text before it.
const checksumMember = ",\n  \"checksum\": \"%x\"\n}\n"

// signed puts the checksum behind the last member of an object in JSON.
func signed(object []byte) []byte {
	body := bytes.TrimSuffix(object, []byte("\n}"))
	return fmt.Appendf(bytes.Clone(body), checksumMember, Checksum(body))
}

// unsigned takes the checksum off, and reports whether it fits.
func unsigned(text []byte) (object []byte, fits bool) {
	end := max(0, len(text)-len(fmt.Sprintf(checksumMember, Checksum(nil))))
	object = append(text[:end:end], "\n}"...)
	return object, bytes.Equal(text, signed(object))
}

// IsMember reports whether a directory is that of a node which is, or was, part of a
// cluster; also if its identity can't be read, for which Open returns the reason.
func IsMember(dir string) bool {
	id, err := readIdentity(&directory{dir: dir})
	return err == nil && id.Bootstrapped || err != nil && !errors.Is(err, fs.ErrNotExist)
}
