package store

import (
	"errors"
	"fmt"
)

// The errors of this package, for errors.Is. Each is wrapped in a message
// with what happened, what took effect, and what to do.
var (
	// ErrLocked: another process has the directory open. Nothing was changed.
	ErrLocked = errors.New("the data is in use")

	// ErrOtherNode: the directory belongs to a node of another name. Nothing was
	// changed.
	ErrOtherNode = errors.New("the data belongs to another node")

	// ErrOtherCluster: the directory's marker names another cluster. Nothing was
	// changed.
	ErrOtherCluster = errors.New("the data belongs to another cluster")

	// ErrOtherFormat: another binary wrote the directory, in a format that this one may misread.
	// Nothing was changed.
	ErrOtherFormat = errors.New("the data is of another format")

	// ErrLost: a part of the directory is missing or older than the rest (S8, S9).
	// Nothing of the data was changed.
	ErrLost = errors.New("the data is not whole")

	// ErrDamaged: a file of the directory does not hold what was written into it
	// (S12). Nothing of the data was changed.
	ErrDamaged = errors.New("the data is damaged")

	// ErrChecksum: an entry does not fit the checksum of its proposer (S13). It was
	// not stored.
	ErrChecksum = errors.New("the entry does not fit its checksum")

	// ErrDiskFull: entries were refused for want of space (S5). None of them is in the log. To
	// a client the node does not lead (proposal.finish in raftnode).
	ErrDiskFull = errors.New("the disk is full")

	// ErrBroken: a write of log or vote failed, now or earlier (S3). Of the write
	// that failed it is unknown what took effect; later ones were not begun.
	ErrBroken = errors.New("a write failed")

	// ErrContradicted: a snapshot of the leader shows that the end of the log was never
	// committed. The log goes when the process starts again.
	ErrContradicted = errors.New("the log contradicts the leader's snapshot")

	// ErrClosed: the store was closed. Nothing was written.
	ErrClosed = errors.New("the store is closed")

	// errNotFound has the text that hashicorp/raft compares with.
	errNotFound = errors.New("not found")
)

// replaceNode is the cure for a node whose data is damaged or lost. Every message
// of this package that advises it ends with it.
const replaceNode = "replace the node: start it with an empty directory and --join " +
	"n1=HOST:5751,… under its old name, and keep the old directory; never do so while this " +
	"directory holds the only copy of the data"

// Damaged refuses data that is not what was written. what names the record and
// what is wrong with it.
func Damaged(file, what string) error {
	return fmt.Errorf("store: %w: %s: %s; the node does not take part in its cluster with this "+
		"data, which is as it was found; %s",
		ErrDamaged, file, what, replaceNode)
}

// asDamage is Damaged for a record that is not what was written, and any other error as it is.
func asDamage(file string, err error) error {
	if errors.Is(err, errRecord) {
		return Damaged(file, err.Error())
	}
	return err
}

// lost refuses a node that has forgotten something it may have acknowledged.
func lost(m medium, format string, args ...any) error {
	return fmt.Errorf(
		"store: %w: %s: %s; none of the data was changed; put back the directory exactly as it "+
			"was when the node last ran (an older copy has forgotten what came after it), or %s",
		ErrLost, m.path(""), fmt.Sprintf(format, args...), replaceNode)
}
