package fsm

import (
	"cmp"
	"errors"
	"fmt"
	"io"

	"zamok/clock"
)

// NewHistory is what a restored backup begins with.
type NewHistory struct {
	// Cluster is the new history's id; not zero.
	Cluster ClusterID
	// AboveIndex is what its index begins above, if that is more than the backup's: the index of
	// the cluster that runs, or what the operator knows of.
	AboveIndex uint64
	// Clock is now, on the scale of tokens (TokenBase), so that the same backup restored twice
	// never issues a token twice; 0 = no clock: the index begins at the backup's or at Above.
	Clock uint64
	// Time is the running cluster's, if one runs, so that cluster time does not fall either.
	Time clock.Time
	// HoldOff is how long nothing is granted; 0 = the backup's RestoreHoldOff, the longest lease
	// and delay that could have been given after it was taken, unless the longest ttl was raised
	// since. It is never less than what the sessions and delays in the backup need.
	HoldOff clock.Span
}

// RewriteBackup turns a backup into the first snapshot of a new history and returns its index,
// above which all of its tokens are, and how long it grants nothing. A tool does it, before Raft
// opens the snapshot: Restore also serves start-up and catching up, where nothing may jump. The
// token scale is the main value of a lock service's backup, so
//
//   - the index rises above every token that was ever issued (TokenBase), and time does not fall,
//   - every session ends (an answer to it says Restored), with its tickets and delays,
//   - nothing is granted until no client of the old cluster can consider its lease valid, and
//   - no epoch, member or digest of the old history counts.
//
// The old cluster must not run any more.
func RewriteBackup(w io.Writer, backup io.Reader,
	h NewHistory) (index uint64, holdOff clock.Span, err error) {
	if h.Cluster == (ClusterID{}) || h.AboveIndex > TokenBaseMax || h.HoldOff < 0 ||
		h.HoldOff > HoldOffMax ||
		h.Time < 0 || h.Time > timeMax {
		return 0, 0, errors.New(
			"fsm: a new history needs an id, an index and a time within bounds and a quiet " +
				"period of up to " +
				HoldOffMax.String() + "; nothing was written")
	}
	if h.Clock > TokenBaseMax {
		return 0, 0, errors.New("fsm: this machine's clock is beyond 2242, where the scale of " +
			"tokens ends; nothing was written; set the clock")
	}
	old, err := Restore(backup)
	if err != nil {
		return 0, 0, err
	}
	m := New()
	// the term is that of the new history's log
	m.version, m.time = old.version, max(old.time, h.Time)
	m.cluster = h.Cluster
	m.index = max(old.index, h.AboveIndex)
	if h.Clock != 0 {
		m.index = TokenBase(h.Clock, m.index)
	}
	if m.index > TokenBaseMax && h.AboveIndex > old.index {
		return 0, 0, fmt.Errorf("fsm: above %d there is no room for the tokens of a new history, "+
			"which begin at %d at most; nothing was written",
			h.AboveIndex, uint64(TokenBaseMax))
	}
	m.restoredThrough = m.index
	m.longestTTL, m.highestTTL, m.quotas = old.longestTTL, old.highestTTL, old.quotas
	holdOff = max(cmp.Or(h.HoldOff, old.RestoreHoldOff()), old.longestObligation())
	m.holdOffUntil = m.time.Add(holdOff)
	if _, err := m.Freeze().WriteTo(w); err != nil {
		return 0, 0, err
	}
	return m.index, holdOff, nil
}

// TokenBase is the index at which a history begins: now, by a clock of 2²⁰ numbers a second, or, if
// that is not above what it has to exceed, that and as many whole leads as it takes. So of two
// histories that begin with one backup the later one begins above the other by 2²⁰ for each second
// between them, also where the backup is ahead of the clock: both have the same lead.
func TokenBase(now, above uint64) uint64 {
	if above <= now {
		return now
	}
	return now + (above-now+TokenLead-1)/TokenLead*TokenLead
}

// longestObligation is how long a client could still consider a grant valid, or a delay could last.
func (m *Machine) longestObligation() clock.Span {
	var longest clock.Span
	for _, s := range m.sessions.All() {
		longest = max(longest, s.TTL+s.LockDelay)
	}
	for _, until := range m.delays.All() {
		longest = max(longest, until.Sub(m.time))
	}
	return max(longest, m.holdOffUntil.Sub(m.time))
}
