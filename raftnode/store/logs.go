package store

import (
	"cmp"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

const (
	// DeleteChunk, in entries, bounds one transaction of a deletion. bbolt has
	// one writer per file, so an append waits for at most this much.
	DeleteChunk = 256

	// LogCacheEntries is how many of the latest entries are kept in memory.
	// Without them every follower's apply and every message of a leader to a
	// follower reads the disk.
	LogCacheEntries = 512
)

// admittedLog is what raft sees: the floor of free space and the proposer's
// checksum in front of the cache. It stands outside the cache because LogCache
// turns errors into text, and ErrDiskFull, ErrBroken and the like must reach those
// callers that ask for them with errors.Is.
type admittedLog struct {
	*raft.LogCache
	log   *writtenLog
	space *space
}

// IsMonotonic tells raft that the log can't have gaps: after a snapshot from the
// leader it deletes the whole log, and not only what the snapshot holds. A gap
// could not be told from entries that were lost (S12).
func (l *admittedLog) IsMonotonic() bool { return true }

func (l *admittedLog) StoreLog(entry *raft.Log) error {
	return l.StoreLogs([]*raft.Log{entry})
}

func (l *admittedLog) StoreLogs(entries []*raft.Log) error {
	if err := l.admit(entries); err != nil {
		if l.log.conflicted.Load() {
			err = l.log.writer.record.end(fmt.Errorf("%w; start the node again: raft still counts the entries that these replace", err))
			l.log.writer.record.fatal(err)
		}
		l.log.writer.record.observe(Write{Op: OpAppend, Entries: len(entries), Bytes: bytesOf(entries), Err: err})
		return err
	}
	if err := l.LogCache.StoreLogs(entries); err != nil {
		return cmp.Or(l.log.writer.record.ended(), err) // the first is what LogCache made text of
	}
	l.log.conflicted.Store(false)
	return nil
}

// admit refuses entries for which there is no room (S5), and those that are not
// what was proposed (S13).
func (l *admittedLog) admit(entries []*raft.Log) error {
	for _, entry := range entries {
		if err := Verify(entry); err != nil {
			return fmt.Errorf("%w; none of the entries that came with it is in the log; if it was sent by the leader it is sent again; "+
				"if this goes on, the memory of a node or the network between them changes what passes through it", err)
		}
	}
	if l.log.conflicted.Load() {
		return nil
	}
	return l.space.admit(bytesOf(entries))
}

// writtenLog is what the cache writes to: the disk's log, one timed write at a
// time, with the store's checksum on each entry.
type writtenLog struct {
	raft.LogStore
	writer    *serialWriter
	segmented bool
	snapshots raft.SnapshotStore
	deletions fifoMutex // raft deletes what its own snapshot holds beside its main loop, and what a leader's holds in it
	// pendingDelete: the whole log was to go, and goes if what is appended next takes its place.
	pendingDelete atomic.Bool
	// conflicted: entries at the end of the log went, or are put off, since they conflict with the leader's, and nothing was
	// appended since. Raft believes in them until the leader's own are in their place: with those refused it would apply
	// entries that are not there, or refuse the leader's forever. So what comes next is not refused for want of room, and
	// if it can't be what was proposed the process ends.
	conflicted atomic.Bool
}

// inSnapshot is the type of an entry of which only the term is known. Raft does not apply such a type.
const inSnapshot = raft.LogType(0xff)

// GetLog reads an entry and verifies it. Entries may be deleted meanwhile: only the disk's log can tell one
// that is gone from one that is missing inside the log, which is as damaged as one that was changed.
//
// A log may begin right behind the newest snapshot. Of the entry in front of it the term is known then, and raft
// needs it to continue behind it: otherwise a leader that has another first entry could only send its snapshot again,
// without an end. Raft asks for the term alone, unless the log is deleted up to here just as a leader reads it: package
// peer sends no such entry, and takes none. If the log is empty raft mostly knows it by itself, but it forgets the leader's snapshot for one of
// its own that it finishes later.
func (l *writtenLog) GetLog(index uint64, entry *raft.Log) error {
	err := l.writer.read(func() error { return readEntry(l.LogStore, index, entry) })
	if !errors.Is(err, raft.ErrLogNotFound) || index < 2 {
		return err
	}
	begin, _, boundsErr := bounds(l)
	if boundsErr != nil {
		return boundsErr
	}
	if begin != index+1 && begin != 0 {
		return raft.ErrLogNotFound // as it is: raft compares it
	}
	newest, newestErr := newestSnapshot(l.snapshots)
	if newestErr != nil {
		return newestErr
	}
	if newest.Index != index {
		return raft.ErrLogNotFound
	}
	*entry = raft.Log{Index: index, Term: newest.Term, Type: inSnapshot}
	return nil
}

// readEntry reads an entry from a disk's log, and takes the seal off it.
func readEntry(log raft.LogStore, index uint64, entry *raft.Log) error {
	if err := log.GetLog(index, entry); err != nil {
		return err
	}
	return unsealed(index, entry)
}

func (l *writtenLog) StoreLog(entry *raft.Log) error {
	return l.StoreLogs([]*raft.Log{entry})
}

func (l *writtenLog) StoreLogs(entries []*raft.Log) error {
	if l.pendingDelete.Load() {
		if err := l.deletePending(entries[0].Index); err != nil {
			return err
		}
	}
	w := Write{Op: OpAppend, Entries: len(entries), Bytes: bytesOf(entries)}
	sealed := make([]*raft.Log, len(entries))
	for i, entry := range entries {
		sealed[i] = Seal(entry)
	}
	return l.writer.write(w, func() error { return l.LogStore.StoreLogs(sealed) })
}

// deletePending deletes what was put off, if an entry of this index is to take its place.
func (l *writtenLog) deletePending(index uint64) error {
	end, err := l.LastIndex()
	if err == nil {
		err = l.remove(index, end)
	}
	l.pendingDelete.Store(err != nil)
	return err
}

// DeleteRange deletes from first to last, both included, in chunks (S6).
//
// Raft asks for the whole log to go when the leader has sent a snapshot. If the
// log reaches beyond that snapshot, nothing is deleted: what lies beyond may have
// been acknowledged, and there is no gap. (Entries that conflict with the
// leader's are never within a snapshot, so they are not spared by this.)
// Of a log that begins right behind the snapshot raft asks the same for either reason: it goes when others
// are appended in its place, which they are at once, and stays if what comes next continues behind its end.
//
// A log that has another entry where the snapshot ends is of a leader that came to
// nothing. Raft would still take its last entry for this node's, also when the log is
// gone, and refuse the entries behind the snapshot forever. So the process ends, and
// the log goes at the next start. It ends as well if the log that stays has a later list
// of nodes than the snapshot, since raft has taken the snapshot's.
func (l *writtenLog) DeleteRange(first, last uint64) error {
	stays, conflict, err := l.classifyDelete(first, last)
	if err != nil {
		return err
	}
	if !stays {
		err = l.remove(first, last)
	}
	if conflict && err == nil {
		l.conflicted.Store(true)
	}
	return err
}

// classifyDelete reports whether a range stays that Raft wants to be deleted, and if not, whether it conflicts with the leader's.
func (l *writtenLog) classifyDelete(first, last uint64) (stays, conflict bool, err error) {
	begin, end, err := bounds(l)
	if err != nil || first > begin || last < end {
		return false, first <= end && last >= end, err
	}
	newest, err := newestSnapshot(l.snapshots)
	if err != nil {
		return false, false, err
	}
	if newest.Index > 0 && begin == newest.Index+1 {
		// No list of nodes is looked for: package peer gives raft no snapshot twice (P10 there).
		l.pendingDelete.Store(true)
		return true, true, nil
	}
	switch holds, err := l.holds(newest, begin, end); {
	case err != nil:
		return false, false, err
	case holds == another:
		err := l.writer.record.end(contradicted(l.writer.file, newest))
		l.writer.record.fatal(err)
		return false, false, err
	case holds == same && newest.Index < end:
		return true, false, l.endIfLaterConfiguration(newest, end)
	}
	return false, newest.Index < end, nil
}

// endIfLaterConfiguration ends the process if a log that stays behind the leader's snapshot, and ends with end, has a list of nodes. Raft
// has taken the snapshot's instead, and does not look at entries that it has: it would elect by an older list.
func (l *writtenLog) endIfLaterConfiguration(snapshot raft.SnapshotMeta, end uint64) error {
	for index := snapshot.Index + 1; index <= end; index++ {
		var entry raft.Log
		if err := l.GetLog(index, &entry); err != nil {
			return err
		}
		if entry.Type == raft.LogConfiguration {
			err := l.writer.record.end(fmt.Errorf("store: the list of nodes that entry %d of %s holds is later than the one of the leader's snapshot, "+
				"which raft has taken; nothing was lost; the process must end and start again, which takes the later one", index, l.writer.file))
			l.writer.record.fatal(err)
			return err
		}
	}
	return nil
}

// holding is what a log has where a snapshot ends.
type holding uint8

const (
	none    holding = iota // it does not reach there
	same                   // the snapshot's last entry
	another                // an entry of another term, which was never committed
)

func (l *writtenLog) holds(snapshot raft.SnapshotMeta, begin, end uint64) (holding, error) {
	if snapshot.Index == 0 || snapshot.Index < begin || end < snapshot.Index {
		return none, nil
	}
	var entry raft.Log
	switch err := l.GetLog(snapshot.Index, &entry); {
	case err != nil:
		return none, err
	case entry.Term != snapshot.Term:
		return another, nil
	}
	return same, nil
}

// dropStale ends what was begun when the leader sent a snapshot: the whole log goes, if it ends before the
// snapshot, so that the next entry would leave a gap, or has another entry where the snapshot ends. Raft has not
// begun yet.
func (l *writtenLog) dropStale() error {
	newest, err := newestSnapshot(l.snapshots)
	if err != nil {
		return err
	}
	first, last, err := bounds(l)
	if err != nil || last == 0 {
		return err
	}
	if holds, err := l.holds(newest, first, last); err != nil || holds != another && last >= newest.Index {
		return err
	}
	return l.remove(first, last)
}

// remove deletes a range, a part at a time.
//
// A range that reaches the end of the log goes from the back, any other from the
// front, so that a crash between two parts leaves no hole. Raft asks for the
// first to drop entries that conflict with the leader's: were their front gone
// and their end still there, the end would count as this node's log. It asks for
// the second to drop what a snapshot holds; if that is the whole log, what a
// crash leaves in front is in the snapshot as well. A range with entries on both
// sides is not asked for, and would be a hole however it is done.
func (l *writtenLog) remove(first, last uint64) (err error) {
	for more := true; more && err == nil; {
		more, err = l.removeSome(first, last)
	}
	return err
}

func (l *writtenLog) removeSome(first, last uint64) (more bool, err error) {
	l.deletions.Lock()
	defer l.deletions.Unlock()
	begin, end, err := bounds(l) // as they are by now
	if err != nil {
		return false, err
	}
	first, last = max(first, begin), min(last, end)
	switch {
	case end == 0 || last < first: // even to delete nothing would flush the disk twice
		return false, nil
	case l.segmented || last-first < DeleteChunk:
		// Of segments any range goes with one small write, and a crash leaves all of it or nothing.
		return false, l.deleteChunk(first, last)
	case last == end:
		first = last - DeleteChunk + 1
	default:
		last = first + DeleteChunk - 1
	}
	return true, l.deleteChunk(first, last)
}

func (l *writtenLog) deleteChunk(from, to uint64) error {
	w := Write{Op: OpDelete, Entries: int(to - from + 1)}
	return l.writer.write(w, func() error { return l.LogStore.DeleteRange(from, to) })
}

func bytesOf(entries []*raft.Log) int {
	bytes := 0
	for _, entry := range entries {
		bytes += len(entry.Data) + len(entry.Extensions)
	}
	return bytes
}
