package store

import (
	"errors"
	"fmt"
)

const (
	// termMax is the last term that a node starts in. Elections never get there. The one after the last that
	// there is would be 0, which no other node follows.
	termMax = 1 << 63
	// indexMax is the last index that a snapshot may reach.
	indexMax = 1 << 62
)

// inspectTerms reads the votes and compares their term with that of the log's last entry, which it returns.
// Raft writes a term before the first entry of it, so votes that know less are from an older copy, and the
// node could vote twice in one term.
func inspectTerms(m *medium, logTerm uint64) (term uint64, err error) {
	err = intact(m.votesName, func() (err error) {
		if _, err = m.votes.Get(keyVoteCandidate); err != nil && !errors.Is(err, errNotFound) {
			return err
		}
		term, err = number(m.votes, keyCurrentTerm)
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

// inspectSnapshotTerms compares the term of the votes with the snapshots.
func inspectSnapshotTerms(m *medium, term uint64) error {
	snapshots, err := m.snapshots.List()
	if err != nil {
		return err
	}
	for _, s := range snapshots {
		if term < s.Term || s.Index > indexMax {
			return lost(m.where, fmt.Sprintf("snapshot %s is of term %d and index %d, but the votes only know term %d", s.ID, s.Term, s.Index, term))
		}
	}
	return nil
}
