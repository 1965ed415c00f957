package store

import (
	"fmt"

	"github.com/hashicorp/raft"
)

const (
	// termMax is the last term that a node starts in. Elections never get there. The one after the last that
	// there is would be 0, which no other node follows.
	termMax = 1 << 63
	// indexMax is the last index that a snapshot may reach.
	indexMax = 1 << 62
)

// inspectTerms compares the votes with the log, which ends at index last, and with the snapshots. Raft writes
// a term before the first entry or snapshot of it, so votes that know less are from an older copy, or gone,
// and the node could vote twice in one term.
func inspectTerms(m medium, last uint64) error {
	term, err := number(m.votes, keyCurrentTerm)
	if err != nil && err.Error() != errNotFound.Error() {
		return err
	}
	if term > termMax {
		return lost(m.where, fmt.Sprintf("the votes are of term %d, which no cluster reaches", term))
	}
	if last > 0 {
		var entry raft.Log
		if err := m.logs.GetLog(last, &entry); err != nil {
			return err
		}
		if term < entry.Term {
			return lost(m.where, fmt.Sprintf("the log has reached term %d, but the votes only know term %d", entry.Term, term))
		}
	}
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
