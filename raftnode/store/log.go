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

// raftLog is the log that raft sees. An append is admitted (free space, the proposer's checksum),
// sealed with the store's checksum, written by the log's one writer, and then seen by raft; or seen
// first, and written while raft continues (pending.go). One goroutine at a time appends: raft's
// main loop. Below it is an engine, or the fault injection of a test.
type raftLog struct {
	serialWriter
	engine raft.LogStore
	// fires when nothing was written for a while, and marks the log durable; nil: it need not be
	idle      *time.Timer
	space     *space
	snapshots *snapshots

	mayPostpone func(entries []*raft.Log) bool // Config.Postpone
	written     func(entries []*raft.Log)      // Config.Written
	pending     pending

	// extent is which entries there are, pending ones included. It grows after an append, or when
	// entries become pending, and shrinks before a deletion or an append that replaces entries.
	extent atomic.Pointer[extent]
	// cache has an entry of index i at i modulo its length. What is outside the extent does not
	// count.
	cache [LogCacheEntries]atomic.Pointer[raft.Log]
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
			return e, fmt.Errorf("entry %d can't follow entry %d: the log would have a gap",
				entry.Index, e.last)
		}
		e.last++
	}
	return e, nil
}

// upTo and behind return what of it ends with an entry, and what begins right behind that.
func (e extent) upTo(index uint64) extent {
	if index < e.first {
		return extent{}
	}
	return extent{e.first, min(index, e.last)}
}

func (e extent) behind(index uint64) extent {
	if index >= e.last {
		return extent{}
	}
	return extent{max(index+1, e.first), e.last}
}

func extentOf(log raft.LogStore) (extent, error) {
	first, firstErr := log.FirstIndex()
	last, lastErr := log.LastIndex()
	return extent{first, last}, errors.Join(firstErr, lastErr)
}

// inSnapshot is the type of an entry of which only the term is known. Raft does not apply such a
// type.
const inSnapshot = raft.LogType(0xff)

// IsMonotonic makes raft delete the whole log after a snapshot from the leader, and not only what
// the snapshot covers. Otherwise the log would have a gap, which can't be distinguished from
// entries that were lost (S12).
func (l *raftLog) IsMonotonic() bool { return true }

// FirstIndex implements raft.LogStore.
func (l *raftLog) FirstIndex() (uint64, error) { return l.extent.Load().first, nil }

// LastIndex implements raft.LogStore.
func (l *raftLog) LastIndex() (uint64, error) { return l.extent.Load().last, nil }

// GetLog implements raft.LogStore. It reads without the writer's lock. An entry that can't be read
// is damaged, unless the extent has changed meanwhile, since the entry may have been deleted.
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

// getSnapshotted returns the term of the newest snapshot's last entry, if the log is empty or
// begins right behind it.
//
// Raft needs it to continue behind the snapshot: otherwise a leader that has another first entry
// could only send its snapshot again, without an end. Raft asks for the term alone, unless it is
// about to send entry 1 (a restored backup's snapshot ends there), or the log is deleted up to here
// just as a leader reads it: package peer sends no such entry, and takes none. If the log is empty
// raft mostly knows the term by itself, but it forgets the leader's snapshot for one of its own
// that it finishes later.
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

// markDurableWhenIdle has the log's record say that the last write is durable, when no other one
// follows it soon.
func (l *raftLog) markDurableWhenIdle(mark func() error) {
	l.idle = time.AfterFunc(idleAfter, func() {
		if l.record.ended() == nil {
			_ = l.serialWriter.write(OpMarkDurable, 0, mark)
		}
	})
}

// StoreLog implements raft.LogStore.
func (l *raftLog) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// StoreLogs implements raft.LogStore. Entries that the log has from the first of these on conflict
// with the leader's, and go in the same write. Raft has taken back what they did to the list of
// nodes, but counts them until these are in their place. So these are not refused for want of
// space, and if one does not fit its checksum the process ends.
func (l *raftLog) StoreLogs(entries []*raft.Log) error {
	sealed := make([]*raft.Log, len(entries))
	for i, entry := range entries {
		sealed[i] = Seal(entry)
	}
	replaces := l.extent.Load().has(entries[0].Index)
	if err := l.admit(entries, replaces, l.pending.size()+bytesOf(sealed)); err != nil {
		if replaces {
			err = l.record.abort(fmt.Errorf(
				"%w; start the node again: raft still counts the entries that these replace", err))
		}
		return err
	}
	if l.postpone(entries, sealed) {
		return nil
	}
	if err := l.flush(); err != nil {
		return err
	}
	return l.write(OpAppend, len(entries), func() error {
		if replaces {
			l.hide(func(all extent) extent { return all.upTo(entries[0].Index - 1) })
		}
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

// hide takes entries from raft, before they go. It leaves the others in the cache: some may be
// pending.
func (l *raftLog) hide(rest func(extent) extent) {
	l.pending.mu.Lock()
	defer l.pending.mu.Unlock()
	next := rest(*l.extent.Load())
	l.extent.Store(&next)
	for i := range l.cache {
		if entry := l.cache[i].Load(); entry != nil && !next.has(entry.Index) {
			l.cache[i].Store(nil)
		}
	}
}

// admit refuses entries for which there is no space (S5), and those that are not
// what was proposed (S13). A leader appends a configuration alone, and raft has it in force also if
// that fails.
func (l *raftLog) admit(entries []*raft.Log, replaces bool, bytes int) error {
	for _, entry := range entries {
		if err := Verify(entry); err != nil {
			return fmt.Errorf(
				"%w; none of the entries that came with it is in the log; if it was sent by the "+
					"leader it is sent again; if this goes on, the memory of a node or the "+
					"network between them changes what passes through it", err)
		}
	}
	if replaces || len(entries) == 1 && entries[0].Type == raft.LogConfiguration {
		return nil
	}
	return l.space.admit(bytes)
}

// DeleteRange implements raft.LogStore. It deletes what lies up to last, when what was pending is
// written.
//
// Raft also deletes the end of the log because it conflicts with the leader's entries, and all of
// it when the leader has sent a snapshot:
//
//   - All lies behind the newest snapshot: nothing is deleted. If it conflicts, the next append
//     takes its place (StoreLogs). After a snapshot, that continues behind its end, or takes its
//     place.
//   - The log reaches beyond the snapshot: nothing is deleted. What lies beyond may have been
//     acknowledged, and there is no gap. If the log that stays has a later list of nodes than the
//     snapshot, the process ends, since raft has taken the snapshot's.
//   - The log has another entry where the snapshot ends: it is of a leader whose entries were never
//     committed. Raft would still take its last entry for this node's, also when the log is
//     deleted, and refuse the entries behind the snapshot forever. So the process ends, and the
//     next Open deletes the log.
func (l *raftLog) DeleteRange(first, last uint64) error {
	if err := l.flush(); err != nil {
		return err
	}
	now, newest := *l.extent.Load(), l.snapshots.newest()
	switch {
	case last >= now.last && first > newest.Index:
		// No list of nodes is looked for: package peer gives raft no snapshot twice (P10 there).
		return nil
	case now.has(first - 1):
		return fmt.Errorf("entries %d to %d lie in the middle of %d to %d: the log would "+
			"have a gap", first, last, now.first, now.last)
	case last >= now.last && now.has(newest.Index):
		same, err := l.hasLastOf(newest)
		switch {
		case err != nil:
			return err
		case !same:
			return l.record.abort(fmt.Errorf(
				"store: %w: %s has an entry at index %d that is not of term %d, so its end was "+
					"never committed; nothing was lost; the process must end and start again, "+
					"which deletes the log: the snapshot holds all of it that counts",
				ErrContradicted, l.file, newest.Index, newest.Term))
		case newest.Index < now.last:
			return l.endIfLaterConfiguration(newest, now.last)
		}
	}
	return l.remove(last)
}

// hasLastOf reports whether the log, whose extent has the snapshot's last entry, has it of the same
// term.
func (l *raftLog) hasLastOf(snapshot raft.SnapshotMeta) (bool, error) {
	var entry raft.Log
	err := l.GetLog(snapshot.Index, &entry)
	return entry.Term == snapshot.Term, err
}

// endIfLaterConfiguration ends the process if a log that stays behind the leader's snapshot, and
// ends with end, has a list of nodes. Raft has taken the snapshot's instead, and does not look at
// entries that it has: it would elect by an older list.
func (l *raftLog) endIfLaterConfiguration(snapshot raft.SnapshotMeta, end uint64) error {
	for index := snapshot.Index + 1; index <= end; index++ {
		var entry raft.Log
		if err := l.GetLog(index, &entry); err != nil {
			return err
		}
		if entry.Type == raft.LogConfiguration {
			return l.record.abort(fmt.Errorf(
				"store: the list of nodes that entry %d of %s holds is later than the one of the "+
					"leader's snapshot, which raft has taken; nothing was lost; the process must "+
					"end and start again, which takes the later one", index, l.file))
		}
	}
	return nil
}

// dropStale completes what a raft left that ended when the leader had sent a snapshot: it deletes
// the whole log if that ends before the snapshot, so that the next entry would leave a gap, or has
// another entry where the snapshot ends. Raft has not begun yet; what its last run left pending is
// written first.
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
	return l.remove(now.last)
}

// remove deletes what the log has up to an entry.
func (l *raftLog) remove(last uint64) error {
	gone := l.extent.Load().upTo(last)
	if gone.last == 0 {
		return nil
	}
	return l.write(OpDelete, int(gone.last-gone.first+1), func() error {
		if gone = l.extent.Load().upTo(last); gone.last == 0 { // another deletion was first
			return nil
		}
		l.hide(func(all extent) extent { return all.behind(last) })
		return l.engine.DeleteRange(gone.first, gone.last)
	})
}
