package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// A Store is the opened data of one node. Its methods and the stores that it
// hands out may be called from any goroutine.
type Store struct {
	medium    medium
	engine    engine
	logs      *raftLog
	votes     *votes
	snapshots raft.SnapshotStore
	space     *space
	record    *record

	closed atomic.Bool
	naming fifoMutex // one change of the identity at a time
	// as the disk holds it; other nodes ask for it while the disk hangs
	identity atomic.Pointer[Identity]
}

// Logs is the log for raft.NewRaft.
func (s *Store) Logs() raft.LogStore { return s.logs }

// Votes is the stable store for raft.NewRaft.
func (s *Store) Votes() raft.StableStore { return s.votes }

// Snapshots is the snapshot store for raft.NewRaft.
func (s *Store) Snapshots() raft.SnapshotStore { return s.snapshots }

// LogName is where the log is, for messages.
func (s *Store) LogName() string { return s.logs.file }

// Identity returns who this node is, as written. It never waits for the disk.
func (s *Store) Identity() Identity { return *s.identity.Load() }

// HoldsData reports whether there is a log entry or a snapshot. It never waits for the disk.
func (s *Store) HoldsData() bool {
	return s.logs.extent.Load().first > 0 || s.logs.snapshots.newest().Index > 0
}

// RecordCluster writes down that the bootstrap, or the joining, is complete, and in which
// cluster. A zero cluster is one whose id is not known yet: call it again when it
// is. To repeat it changes nothing; another cluster than the one written is
// refused with ErrOtherCluster, and so is, with ErrLost, a marker for neither log
// nor snapshot, because the next Open would refuse it. After any error the
// marker is as it was.
func (s *Store) RecordCluster(cluster ID) error {
	return s.change("the marker", func(next *Identity) error {
		if cluster == (ID{}) {
			cluster = next.Cluster
		}
		switch {
		case next.Cluster != (ID{}) && next.Cluster != cluster:
			return fmt.Errorf(
				"store: %w: the marker of %s names cluster %v, not %v; nothing was changed; "+
					"connect the node to its own cluster, or give it an empty directory to join "+
					"this one",
				ErrOtherCluster, s.medium.path(""), next.Cluster, cluster)
		case !s.HoldsData():
			return fmt.Errorf("store: %w: %s has no log entry and no snapshot yet; it was not "+
				"marked; mark it when the first entry is applied",
				ErrLost, s.medium.path(""))
		}
		next.Bootstrapped, next.Cluster = true, cluster
		return nil
	})
}

// Bootstrap writes down the initial members that this node agrees to begin a cluster
// with. It comes before the first entry of the log. After an error those written
// before stand.
func (s *Store) Bootstrap(initial string) error { return s.begin(initial, ID{}) }

// Join writes down which cluster this node waits to join. It comes before
// anything of that cluster is in the log, and voids what was agreed with others.
func (s *Store) Join(cluster ID) error { return s.begin("", cluster) }

func (s *Store) begin(initial string, cluster ID) error {
	return s.change("the identity", func(next *Identity) error {
		if s.HoldsData() && (next.Initial != initial || next.Cluster != cluster) {
			return fmt.Errorf("store: %s holds a log or a snapshot already; nothing was changed",
				s.medium.path(""))
		}
		next.Initial, next.Cluster = initial, cluster
		return nil
	})
}

// RecordTimeout writes down the timeout that the node starts with. After an error the one before
// stands.
func (s *Store) RecordTimeout(timeout uint32) error {
	return s.change("the timeout", func(next *Identity) error {
		next.Timeout = timeout
		return nil
	})
}

// change replaces the identity if something of it changes.
func (s *Store) change(what string, do func(next *Identity) error) error {
	s.naming.Lock()
	defer s.naming.Unlock()
	if err := s.record.ended(); err != nil {
		return err
	}
	now := s.Identity()
	next := now
	if err := do(&next); err != nil || next == now {
		return err
	}
	if err := writeIdentity(s.medium, next); err != nil {
		return fmt.Errorf("store: %s of %s was not written: %w; what was written before stands; "+
			"try again", what, s.medium.path(""), err)
	}
	s.identity.Store(&next)
	return nil
}

// WaitWritten returns nil when no entry up to index is pending (S16); an error if ctx ends before,
// or all writing does, because it failed or the store was closed.
func (s *Store) WaitWritten(ctx context.Context, index uint64) error {
	return s.logs.waitWritten(ctx, index)
}

// Term is the term that this node is in, as it was last written; 0 if it was in none. It never
// waits for the disk.
func (s *Store) Term() uint64 { return s.votes.term() }

// LowSpace is the free space below which IsLowSpace reports true.
func (s *Store) LowSpace() uint64 { return s.space.lowSpace }

// DropStale deletes the log if the leader's snapshot takes its place, which raft does itself unless
// it ends before. It first waits for what is pending. It is called before each start of raft on
// this store; Open has done so for the first.
func (s *Store) DropStale() error { return s.logs.dropStale() }

// FreeBytes returns how many bytes may still be written to the disk; math.MaxUint64 if that is not
// known.
func (s *Store) FreeBytes() uint64 { return s.space.free() }

// IsLowSpace reports whether less than Config.LowSpace is free.
func (s *Store) IsLowSpace() bool { return s.FreeBytes() < s.space.lowSpace }

// CheckSpace returns why entries are refused now (S5), or nil.
func (s *Store) CheckSpace() error { return s.space.admit(0) }

// LogBytes bounds the entries that the log keeps, in bytes, as long as a snapshot is taken each
// time that it wants one: it only deletes what a snapshot has.
const LogBytes = 32 << 20

// WantsSnapshot reports whether the entries that no snapshot has take more than half of LogBytes.
func (s *Store) WantsSnapshot() bool {
	return s.engine.latest(LogBytes/2) > s.logs.snapshots.newest().Index+1
}

// IsLong reports whether Shrink has something to do.
func (s *Store) IsLong() bool { return s.superfluous() >= max(1, s.logs.extent.Load().first) }

// Shrink deletes entries that the newest snapshot has, until the log has no more than LogBytes.
// Raft keeps a number of entries behind its snapshot, but reads the log before it relies on them: a
// follower that needs more is sent the snapshot.
func (s *Store) Shrink() error {
	if err := s.logs.flush(); err != nil {
		return err
	}
	return s.logs.remove(s.superfluous())
}

// superfluous is the last entry that the log need not keep; 0: it needs all.
func (s *Store) superfluous() uint64 {
	// What the snapshot ends with stays, to be compared with it (S14).
	return min(max(s.engine.latest(LogBytes), 1), max(s.logs.snapshots.newest().Index, 1)) - 1
}

// Writing returns the write of log or vote that has been in progress for
// longest. A watchdog on another goroutine sees here a disk that hangs (S4).
func (s *Store) Writing() (InProgress, bool) { return s.record.oldest() }

// Close waits for what is pending and for the writes in progress, then closes the files and gives
// up the directory's lock. Raft must have ended: what it tries to write afterwards is
// refused with ErrClosed. A second Close does nothing.
func (s *Store) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	// it fails only if a write has: that stays the reason
	_ = s.logs.waitWritten(context.Background(), math.MaxUint64)
	ended := s.record.end(fmt.Errorf(
		"store: %w; nothing was written; end raft before closing its store", ErrClosed))
	for _, mu := range []fifoMutex{s.logs.mu, s.votes.mu, s.naming, s.logs.snapshots.completing} {
		mu.Lock()
		defer mu.Unlock()
	}
	var err error
	if errors.Is(ended, ErrClosed) { // and nothing has failed before
		err = recovered(s.engine.markDurable)
	}
	return errors.Join(err, s.engine.close(), s.medium.close())
}
