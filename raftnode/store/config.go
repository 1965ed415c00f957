package store

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// DefaultLowSpace and DefaultLowSpaceSpread, in bytes: the default low-space threshold of a
	// node lies between the first and their sum. See Config.LowSpace.
	DefaultLowSpace       = 256 << 20
	DefaultLowSpaceSpread = 128 << 20

	// DefaultReservedSpace, in bytes, is room for several of the largest entries'
	// batches, for a snapshot of 100 000 locks, and for the next segments of the log.
	DefaultReservedSpace = 32 << 20
)

// Config says where a node keeps its data. NodeID, Fatal, and one of Dir and
// Memory are required.
type Config struct {
	// NodeID is the node's name in the cluster. The directory belongs to it from
	// the first Open on; another name is refused with ErrOtherNode.
	NodeID string

	// Dir is the data directory; it is made if it does not exist. Empty: the
	// data lives in Memory.
	Dir string

	// Memory holds the data when there is no directory. Nil: the data lives in
	// Dir.
	Memory *Memory

	// Format names what this binary writes into log and snapshots. A directory of another format is
	// refused.
	Format string

	// Fatal ends the process, because a write or fsync of log or vote failed and
	// no other may follow (S3). It is called on the goroutine that was writing,
	// and again on every goroutine that tries to write afterwards; "The end of the
	// process" in docs/proofs/storage.md says what it may do in a test. Required.
	Fatal func(error)

	// Observe is called after each write of log and vote that succeeded, with how long it took, its
	// fsync included. It is called on the writing goroutine, so it must be quick and must not call
	// the store. Nil: it is not called.
	Observe func(took time.Duration)

	// Postpone reports whether entries that raft appends may be pending (S16). It is called in the
	// append; it must not call the store, and must return false once raft has begun to end the term
	// of the entries. Nil: none may be.
	Postpone func(entries []*raft.Log) bool

	// Written is called after each append that is on the disk, on the goroutine that wrote it. Nil:
	// it is not called.
	Written func(entries []*raft.Log)

	// LowSpace, in bytes of free space, is the threshold below which IsLowSpace reports true. Zero:
	// one between DefaultLowSpace and DefaultLowSpace+DefaultLowSpaceSpread, fixed by NodeID.
	// Replicated logs fill equal disks at the same minute; with different thresholds one node
	// announces it before the others are full too.
	LowSpace uint64

	// ReservedSpace, in bytes of free space, is where new entries are refused with
	// ErrDiskFull; it must be below LowSpace, and in a directory at least ReservedSegments ×
	// SegmentBytes. Zero: DefaultReservedSpace.
	ReservedSpace uint64

	// Wrap puts a test's faults between the rules of this package and the disk.
	// Zero: nothing.
	Wrap Wrap
}

// Wrap is the seam for faults. Each function is handed the real thing and
// returns what stands in its place: a store that stalls, fails, or writes half.
// It stands below every rule of this package, so a fault behaves as one of the
// disk would: a stall shows in Writing, an error ends the process. Nil functions
// change nothing.
//
// In a testing/synctest bubble a stall must wait on a channel or a timer.
type Wrap struct {
	Logs      func(raft.LogStore) raft.LogStore
	Votes     func(Table) Table
	Snapshots func(raft.SnapshotStore) raft.SnapshotStore
	Free      func() uint64 // in place of the file system's answer
}

// withDefaults returns cfg with its zeros filled in, or a ConfigError.
func (cfg Config) withDefaults() (Config, error) {
	id := fnv.New32a()
	id.Write([]byte(cfg.NodeID))
	cfg.LowSpace = cmp.Or(cfg.LowSpace, DefaultLowSpace+uint64(id.Sum32())%DefaultLowSpaceSpread)
	cfg.ReservedSpace = cmp.Or(cfg.ReservedSpace, DefaultReservedSpace)
	if cfg.Observe == nil {
		cfg.Observe = func(time.Duration) {}
	}
	if cfg.Postpone == nil {
		cfg.Postpone = func([]*raft.Log) bool { return false }
	}
	if cfg.Written == nil {
		cfg.Written = func([]*raft.Log) {}
	}
	wrong := func(field, reason string, args ...any) (Config, error) {
		return cfg, &ConfigError{field, fmt.Errorf(reason, args...)}
	}
	switch {
	case cfg.NodeID == "":
		return wrong("NodeID", "it is empty: name the node")
	case (cfg.Dir == "") == (cfg.Memory == nil):
		return wrong("Dir", "either it or Memory must be set, and not both")
	case cfg.Fatal == nil:
		return wrong("Fatal",
			"it is nil: give a function that ends the process, because a disk that failed once "+
				"must not be written again")
	case cfg.ReservedSpace >= cfg.LowSpace:
		return wrong("ReservedSpace",
			"its %d bytes are not below LowSpace (%d bytes), so entries would be refused before "+
				"anybody is warned: raise LowSpace or lower ReservedSpace", cfg.ReservedSpace,
			cfg.LowSpace)
	case cfg.Dir != "" && cfg.ReservedSpace < ReservedSegments*SegmentBytes:
		return wrong("ReservedSpace",
			"its %d bytes are below %d segments of %d bytes, so there might be no room for the "+
				"next one: raise ReservedSpace", cfg.ReservedSpace, ReservedSegments, SegmentBytes)
	}
	return cfg, nil
}

// ConfigError is what is wrong with a field of Config. Nothing was opened.
type ConfigError struct {
	Field  string
	Reason error
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("store: %s: %v; nothing was opened", e.Field, e.Reason)
}

func (e *ConfigError) Unwrap() error { return e.Reason }
