package store

import "errors"

// The refusals of this package, for errors.Is. Each is wrapped in a sentence
// that says what happened, what took effect, and what to do.
var (
	// ErrLocked: another process has the directory open. Nothing was changed.
	ErrLocked = errors.New("the data is in use")

	// ErrOtherNode: the directory belongs to a node of another name. Nothing was
	// changed.
	ErrOtherNode = errors.New("the data belongs to another node")

	// ErrOtherCluster: the directory's marker names another cluster. Nothing was
	// changed.
	ErrOtherCluster = errors.New("the data belongs to another cluster")

	// ErrOtherLog: the directory keeps its log in another way (Config.Log). Nothing
	// was changed.
	ErrOtherLog = errors.New("the log is of another kind")

	// ErrLost: a part of the directory is missing or older than the rest (S8, S9).
	// Nothing of the data was changed.
	ErrLost = errors.New("the data is not whole")

	// ErrDiskFull: entries were refused for want of space (S5). None of them is
	// in the log.
	ErrDiskFull = errors.New("the disk is full")

	// ErrBroken: a write of log or vote failed, now or earlier (S3). Of the write
	// that failed it is unknown what took effect; later ones were not begun.
	ErrBroken = errors.New("a write failed")

	// ErrClosed: the store was closed. Nothing was written.
	ErrClosed = errors.New("the store is closed")

	// errNotFound has the text that hashicorp/raft compares with.
	errNotFound = errors.New("not found")
)
