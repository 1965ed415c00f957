package store

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/hashicorp/raft"
)

const (
	// termMax is the last term that a node starts in. Elections never get there. The one after the last that
	// there is would be 0, which no other node follows.
	termMax = 1 << 63
	// indexMax is the last index that a snapshot may reach.
	indexMax = 1 << 62
)

// State is what the marker and the log say together (S9).
type State uint8

const (
	Empty     State = iota + 1 // neither log nor marker: a new node
	NoCluster                  // a log without marker: a bootstrap, or a join, that was cut short; call Mark
	InCluster                  // both
)

func (s State) String() string {
	return [...]string{"no state", "empty", "unmarked", "marked"}[s]
}

// inspect refuses a medium that is not this node's, not whole, or damaged, and
// says what it holds.
func inspect(m *medium, node string) (State, error) {
	if m.identity.Node != node {
		return 0, fmt.Errorf("store: %w: %s is node %q's, and this is node %q; nothing was changed; "+
			"give %q a directory of its own, or start it under its old name",
			ErrOtherNode, m.where, m.identity.Node, node, node)
	}
	logTerm, err := inspectLog(m)
	if err != nil {
		return 0, err
	}
	term, err := inspectTerms(m, logTerm)
	if err != nil {
		return 0, err
	}
	if err := inspectSnapshots(m); err != nil {
		return 0, err
	}
	if err := inspectSnapshotTerms(m, term); err != nil {
		return 0, err
	}
	held, err := holds(m)
	if err != nil {
		return 0, err
	}
	switch {
	case held && m.identity.Bootstrapped:
		return InCluster, nil
	case held:
		return NoCluster, nil
	case m.identity.Bootstrapped:
		return 0, lost(m.where, "the marker says that this node was a member of a cluster, but there is neither a log entry nor a snapshot")
	}
	return Empty, nil
}

// intact reads from a file. An error is damage, unless it is that of a value that is not there.
func intact(file string, read func() error) error {
	err := recovered(read)
	if err == nil || errors.Is(err, errNotFound) {
		return nil
	}
	return Damaged(file, err.Error())
}

// inspectLog reads the whole log: every entry between its bounds must be there, and be what was
// written. It returns the term of the last one.
func inspectLog(m *medium) (term uint64, err error) {
	first, last, err := bounds(m.logs)
	if err != nil || last == 0 {
		return 0, err
	}
	err = intact(m.logName, func() error {
		for index := first; index <= last; index++ {
			var entry raft.Log
			if err := readEntry(m.logs, index, &entry); err != nil {
				return fmt.Errorf("entry %d of %d to %d: %w", index, first, last, err)
			}
			if entry.Term < term {
				return fmt.Errorf("entry %d is of term %d, and the one before it of term %d", index, entry.Term, term)
			}
			term = entry.Term
		}
		return nil
	})
	return term, err
}

func bounds(log raft.LogStore) (first, last uint64, err error) {
	first, firstErr := log.FirstIndex()
	last, lastErr := log.LastIndex()
	return first, last, errors.Join(firstErr, lastErr)
}

// inspectTerms returns the term of the votes, after a comparison with the term of the log's last entry. Raft
// writes a term before the first entry of it, so votes of an earlier term are from an older copy, and the node
// could vote twice in one term.
func inspectTerms(m *medium, logTerm uint64) (term uint64, err error) {
	err = intact(m.votesName, func() (err error) {
		term, err = number(m.votes, keyCurrentTerm) // the checksum is that of the vote, too
		return err
	})
	switch {
	case err != nil:
		return 0, err
	case term > termMax:
		return 0, lost(m.where, fmt.Sprintf("the votes are of term %d, which no cluster reaches", term))
	case term < logTerm:
		return 0, lost(m.where, fmt.Sprintf("the log has reached term %d, but the votes only know term %d", logTerm, term))
	}
	return term, nil
}

// inspectSnapshots looks for the newest snapshot that can be read, and refuses one that can't unless
// the log has everything that came after the one before it, up to the same last entry: raft would continue from
// the older one, and not notice what is missing between that and the log.
func inspectSnapshots(m *medium) error {
	first, last, err := bounds(m.logs)
	if err != nil {
		return err
	}
	names, err := snapshotNames(m.snapshots, m.folders)
	if err != nil {
		return err
	}
	var base uint64
	var unreadable error
	for _, name := range names {
		meta, state, err := openSnapshot(m.snapshots, m.folders, name.id)
		if err == nil {
			base, err = meta.Index, state.Close()
		}
		if err == nil {
			break
		}
		m.unreadable = append(m.unreadable, name.id)
		if unreadable == nil {
			unreadable = Damaged(filepath.Join(m.folders, name.id), err.Error())
		}
	}
	reaches := last > 0 && first <= base+1
	switch {
	case unreadable != nil && (!reaches || !hasEntry(m.logs, names[0])):
		return unreadable
	case last > 0 && !reaches:
		return Damaged(m.logName, fmt.Sprintf("it begins with entry %d, and the newest snapshot ends with entry %d", first, base))
	}
	return nil
}

// hasEntry reports whether a log has the last entry of a snapshot: one that has another was to be deleted.
func hasEntry(log raft.LogStore, snapshot snapshotName) bool {
	var entry raft.Log
	return readEntry(log, snapshot.index, &entry) == nil && entry.Term == snapshot.term
}

// inspectSnapshotTerms refuses a snapshot that is later than the votes, or beyond all logs.
func inspectSnapshotTerms(m *medium, term uint64) error {
	snapshots, err := m.snapshots.List()
	if err != nil {
		return err
	}
	for _, s := range snapshots {
		switch {
		case term < s.Term:
			return lost(m.where, fmt.Sprintf("snapshot %s is of term %d, but the votes only know term %d", s.ID, s.Term, term))
		case s.Index > indexMax:
			return lost(m.where, fmt.Sprintf("snapshot %s reaches index %d, which no log reaches", s.ID, s.Index))
		}
	}
	return nil
}

// holds reports whether there is a log entry or a snapshot.
func holds(m *medium) (bool, error) {
	last, err := m.logs.LastIndex()
	if err != nil || last > 0 {
		return last > 0, err
	}
	snapshots, err := m.snapshots.List()
	return len(snapshots) > 0, err
}

// newestSnapshot is what the newest snapshot holds; without an index if there is none.
func newestSnapshot(snapshots raft.SnapshotStore) (raft.SnapshotMeta, error) {
	metas, err := snapshots.List()
	if err != nil || len(metas) == 0 {
		return raft.SnapshotMeta{}, err
	}
	return *metas[0], nil // the newest is the first
}
