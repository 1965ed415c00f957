package store

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// LogCacheEntries is how many of the latest entries are kept in memory.
	// Without them every follower's apply and every message of a leader to a
	// follower reads the disk.
	LogCacheEntries = 512

	// idleAfter is how long after its last write a log is idle.
	idleAfter = 5 * time.Millisecond
)

// raftLog is the log that raft sees. An append is admitted (free space, the proposer's checksum), sealed
// with the store's checksum, written by the log's one writer, and then visible; or visible first, and written
// while raft continues (pending.go). One goroutine at a time appends: raft's main loop. Below it is an engine, or
// the fault injection of a test.
type raftLog struct {
	serialWriter
	engine    raft.LogStore
	idle      *time.Timer // settles the log when nothing was written for a while; nil: it need not be
	space     *space
	snapshots *snapshots

	mayPostpone func(entries []*raft.Log) bool // Config.Postpone
	written     func(entries []*raft.Log)      // Config.Written
	pending     pending

	// extent is which entries there are, pending ones included. It grows after an append, or when entries
	// become pending, and shrinks before a deletion.
	extent atomic.Pointer[extent]
	// cache has an entry of index i at i modulo its length. What is outside the extent does not count.
	cache [LogCacheEntries]atomic.Pointer[raft.Log]

	// deletions lets one goroutine delete at a time: raft deletes what its own snapshot covers beside its
	// main loop, and what a leader's snapshot covers in it.
	deletions fifoMutex
	// pendingDelete: raft asked to delete the whole log, which happens only when an append takes its place.
	pendingDelete atomic.Bool
	// conflicted: entries at the end of the log are deleted, or will be (pendingDelete), because they
	// conflict with the leader's, and nothing was appended since. Raft counts them until the leader's
	// own are in their place: were those refused, it would apply entries that are not there, or refuse
	// the leader's forever. So the next append is not refused for want of space, and if it does not fit
	// its checksum the process ends.
	conflicted atomic.Bool
}

// An extent is which entries a log has, both ends included; zero: none.
type extent struct{ first, last uint64 }

func (e extent) has(index uint64) bool { return e.first > 0 && e.first <= index && index <= e.last }

// plus returns the extent after an append.
func (e extent) plus(entries []*raft.Log) (extent, error) {
	for _, entry := range entries {
		if e.first == 0 {
			e = extent{entry.Index, entry.Index - 1}
		}
		if entry.Index != e.last+1 {
			return e, fmt.Errorf("entry %d can't follow entry %d: the log would have a gap", entry.Index, e.last)
		}
		e.last++
	}
	return e, nil
}

// minus returns the extent after a deletion.
func (e extent) minus(from, to uint64) (extent, error) {
	switch {
	case from == e.first && to == e.last:
		return extent{}, nil
	case from == e.first:
		return extent{to + 1, e.last}, nil
	case to == e.last:
		return extent{e.first, from - 1}, nil
	}
	return e, fmt.Errorf("entries %d to %d lie in the middle of %d to %d: the log would have a gap", from, to, e.first, e.last)
}

func extentOf(log raft.LogStore) (extent, error) {
	first, firstErr := log.FirstIndex()
	last, lastErr := log.LastIndex()
	return extent{first, last}, errors.Join(firstErr, lastErr)
}

// inSnapshot is the type of an entry of which only the term is known. Raft does not apply such a type.
const inSnapshot = raft.LogType(0xff)

// IsMonotonic makes raft delete the whole log after a snapshot from the leader, and not only what the
// snapshot covers. Otherwise the log would have a gap, which can't be distinguished from entries that were lost
// (S12).
func (l *raftLog) IsMonotonic() bool { return true }

// FirstIndex implements raft.LogStore.
func (l *raftLog) FirstIndex() (uint64, error) { return l.extent.Load().first, nil }

// LastIndex implements raft.LogStore.
func (l *raftLog) LastIndex() (uint64, error) { return l.extent.Load().last, nil }

// GetLog implements raft.LogStore. It reads without the writer's turn. An entry that can't be read is
// damaged, unless the extent has changed meanwhile, since the entry may have been deleted.
func (l *raftLog) GetLog(index uint64, entry *raft.Log) error {
	for {
		now := l.extent.Load()
		if !now.has(index) {
			return l.getSnapshotted(*now, index, entry)
		}
		if cached := l.cache[index%LogCacheEntries].Load(); cached != nil && cached.Index == index {
			*entry = *cached
			return nil
		}
		err := recovered(func() error { return readEntry(l.engine, index, entry) })
		if err == nil {
			return nil
		}
		if l.extent.Load() == now {
			return l.damaged(err)
		}
	}
}

// getSnapshotted returns the term of the newest snapshot's last entry, if the log is empty or begins
// right behind it.
//
// Raft needs it to continue behind the snapshot: otherwise a leader that has another first entry could
// only send its snapshot again, without an end. Raft asks for the term alone, unless it is about to send
// entry 1 (a restored backup's snapshot ends there), or the log is deleted up to here just as a leader
// reads it: package peer sends no such entry, and takes none. If the log is empty raft mostly knows the
// term by itself, but it forgets the leader's snapshot for one of its own that it finishes later.
func (l *raftLog) getSnapshotted(now extent, index uint64, entry *raft.Log) error {
	if index < 2 || now.first != 0 && now.first != index+1 {
		return raft.ErrLogNotFound // raft compares it with ==
	}
	newest := l.snapshots.newest()
	if newest.Index != index {
		return raft.ErrLogNotFound
	}
	*entry = raft.Log{Index: index, Term: newest.Term, Type: inSnapshot}
	return nil
}

// readEntry reads an entry from an engine, and takes the seal off it.
func readEntry(engine raft.LogStore, index uint64, entry *raft.Log) error {
	if err := engine.GetLog(index, entry); err != nil {
		return err
	}
	return unsealed(index, entry)
}

// write does one write of the log.
func (l *raftLog) write(op Op, count int, do func() error) error {
	err := l.serialWriter.write(op, count, do)
	if err == nil && l.idle != nil {
		l.idle.Reset(idleAfter)
	}
	return err
}

// settleWhenIdle has the log's record say of the last write that it is durable when no other
// follows it soon.
func (l *raftLog) settleWhenIdle(settle func() error) {
	l.idle = time.AfterFunc(idleAfter, func() {
		if l.record.ended() == nil {
			_ = l.serialWriter.write(OpSettle, 0, settle)
		}
	})
}

// StoreLog implements raft.LogStore.
func (l *raftLog) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// StoreLogs implements raft.LogStore.
func (l *raftLog) StoreLogs(entries []*raft.Log) error {
	sealed := make([]*raft.Log, len(entries))
	for i, entry := range entries {
		sealed[i] = Seal(entry)
	}
	if err := l.admit(entries, l.pending.size()+bytesOf(sealed)); err != nil {
		if l.conflicted.Load() {
			err = l.record.abort(fmt.Errorf("%w; start the node again: raft still counts the entries that these replace", err))
		}
		return err
	}
	if l.pendingDelete.Load() {
		err := l.remove(entries[0].Index, l.extent.Load().last)
		l.pendingDelete.Store(err != nil)
		if err != nil {
			return err
		}
	}
	if l.postpone(entries, sealed) {
		return nil
	}
	if err := l.flush(); err != nil {
		return err
	}
	return l.write(OpAppend, len(entries), func() error {
		next, err := l.extent.Load().plus(entries)
		if err == nil {
			err = l.engine.StoreLogs(sealed)
		}
		if err != nil {
			return err
		}
		l.written(entries)
		l.pending.mu.Lock()
		defer l.pending.mu.Unlock()
		l.show(entries, next)
		l.conflicted.Store(false)
		return nil
	})
}

// show lets raft see entries. The caller holds the lock of what is pending.
func (l *raftLog) show(entries []*raft.Log, next extent) {
	for _, entry := range entries {
		l.cache[entry.Index%LogCacheEntries].Store(entry)
	}
	l.extent.Store(&next)
}

// hide takes entries from raft. It leaves the others in the cache: some may be pending.
func (l *raftLog) hide(first, last uint64) error {
	l.pending.mu.Lock()
	defer l.pending.mu.Unlock()
	next, err := l.extent.Load().minus(first, last)
	if err != nil {
		return err
	}
	l.extent.Store(&next)
	for i := range l.cache {
		if entry := l.cache[i].Load(); entry != nil && !next.has(entry.Index) {
			l.cache[i].Store(nil)
		}
	}
	return nil
}

// admit refuses entries for which there is no space (S5), and those that are not
// what was proposed (S13). A leader appends a configuration alone, and raft has it in force also if that fails.
func (l *raftLog) admit(entries []*raft.Log, bytes int) error {
	for _, entry := range entries {
		if err := Verify(entry); err != nil {
			return fmt.Errorf("%w; none of the entries that came with it is in the log; if it was sent by the leader it is sent again; "+
				"if this goes on, the memory of a node or the network between them changes what passes through it", err)
		}
	}
	if l.conflicted.Load() || len(entries) == 1 && entries[0].Type == raft.LogConfiguration {
		return nil
	}
	return l.space.admit(bytes)
}

// DeleteRange implements raft.LogStore. It deletes from first to last, both included, when what was
// pending is written.
//
// Raft deletes the whole log when the leader has sent a snapshot, or when all of it conflicts with the
// leader's.
//
//   - The log begins right behind the snapshot: it may be either. The log is deleted when others are
//     appended in its place, which they are at once, and stays if what is appended next continues behind
//     its end.
//   - The log reaches beyond the snapshot: nothing is deleted. What lies beyond may have been
//     acknowledged, and there is no gap. (Entries that conflict with the leader's are never within a
//     snapshot.) If the log that stays has a later list of nodes than the snapshot, the process ends,
//     since raft has taken the snapshot's.
//   - The log has another entry where the snapshot ends: it is of a leader whose entries were never
//     committed. Raft would still take its last entry for this node's, also when the log is deleted, and
//     refuse the entries behind the snapshot forever. So the process ends, and the next Open deletes the
//     log.
func (l *raftLog) DeleteRange(first, last uint64) error {
	if err := l.flush(); err != nil {
		return err
	}
	now := *l.extent.Load()
	conflict := first <= now.last && last >= now.last
	if first <= now.first && last >= now.last {
		newest := l.snapshots.newest()
		if newest.Index > 0 && now.first == newest.Index+1 {
			// No list of nodes is looked for: package peer gives raft no snapshot twice (P10 there).
			l.pendingDelete.Store(true)
			l.conflicted.Store(true)
			return nil
		}
		conflict = newest.Index < now.last
		if now.has(newest.Index) {
			same, err := l.hasLastOf(newest)
			switch {
			case err != nil:
				return err
			case !same:
				return l.record.abort(fmt.Errorf("store: %w: %s has an entry at index %d that is not of term %d, so its end was never committed; "+
					"nothing was lost; the process must end and start again, which deletes the log: the snapshot holds all of it that counts",
					ErrContradicted, l.file, newest.Index, newest.Term))
			case conflict:
				return l.endIfLaterConfiguration(newest, now.last)
			}
		}
	}
	err := l.remove(first, last)
	if conflict && err == nil {
		l.conflicted.Store(true)
	}
	return err
}

// hasLastOf reports whether the log, whose extent has the snapshot's last entry, has it of the same term.
func (l *raftLog) hasLastOf(snapshot raft.SnapshotMeta) (bool, error) {
	var entry raft.Log
	err := l.GetLog(snapshot.Index, &entry)
	return entry.Term == snapshot.Term, err
}

// endIfLaterConfiguration ends the process if a log that stays behind the leader's snapshot, and ends
// with end, has a list of nodes. Raft has taken the snapshot's instead, and does not look at entries
// that it has: it would elect by an older list.
func (l *raftLog) endIfLaterConfiguration(snapshot raft.SnapshotMeta, end uint64) error {
	for index := snapshot.Index + 1; index <= end; index++ {
		var entry raft.Log
		if err := l.GetLog(index, &entry); err != nil {
			return err
		}
		if entry.Type == raft.LogConfiguration {
			return l.record.abort(fmt.Errorf("store: the list of nodes that entry %d of %s holds is later than the one of the leader's snapshot, "+
				"which raft has taken; nothing was lost; the process must end and start again, which takes the later one", index, l.file))
		}
	}
	return nil
}

// dropStale completes what a raft left that ended when the leader had sent a snapshot: it deletes the
// whole log if that ends before the snapshot, so that the next entry would leave a gap, or has another
// entry where the snapshot ends. Raft has not begun yet; what its last run left pending is written first.
func (l *raftLog) dropStale() error {
	if err := l.flush(); err != nil {
		return err
	}
	now, newest := *l.extent.Load(), l.snapshots.newest()
	if newest.Index == 0 || newest.Index < now.first {
		return nil
	}
	if now.has(newest.Index) {
		if same, err := l.hasLastOf(newest); err != nil || same {
			return err
		}
	}
	return l.remove(now.first, now.last)
}

// remove deletes what the log has of a range.
func (l *raftLog) remove(first, last uint64) error {
	l.deletions.Lock()
	defer l.deletions.Unlock()
	now := *l.extent.Load()
	first, last = max(first, now.first), min(last, now.last)
	if now.first == 0 || last < first {
		return nil
	}
	return l.write(OpDelete, int(last-first+1), func() error {
		if err := l.hide(first, last); err != nil {
			return err
		}
		return l.engine.DeleteRange(first, last)
	})
}
