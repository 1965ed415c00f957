package fsm

import "zamok/clock"

// leaderStart begins an epoch. The first one of a history also sets where the index begins: above
// every older cluster, so that storage which remembers their tokens does not refuse ours.
func (m *Machine) leaderStart(c *LeaderStart) Result {
	switch {
	case !isText(c.Node, 1, NodeIDBytesMax):
		return invalid("node")
	case c.Cluster == (ClusterID{}):
		return invalid("cluster")
	case c.TokenBase > TokenBaseMax:
		return invalid("token_base")
	}
	if m.cluster == (ClusterID{}) {
		m.cluster = c.Cluster
		m.index = max(m.index, c.TokenBase)
	}
	m.epoch = m.index
	m.emit(Event{Kind: EvEpochStarted, Epoch: c})
	return Result{}
}

// MemberRecord is the record of a node: its latest announcement, and when it was made.
type MemberRecord struct {
	Member
	// Announced is the index of that announcement.
	Announced uint64
	// Replaced is the cluster time at which the incarnation last changed from one to another, as it
	// does when a node has lost its data directory. Zero: it has not changed since the record was made,
	// or it changed while cluster time had not yet begun to advance.
	Replaced clock.Time
}

// member records what a node announces about itself. A known name may come with another incarnation:
// to raft that is another server, so no promise of the old one depends on this record.
func (m *Machine) member(c *Member) Result {
	if field := c.invalid(); field != "" {
		return invalid(field)
	}
	record := MemberRecord{Member: *c, Announced: m.index}
	old, known := m.members.Get(c.ID)
	switch {
	case known:
		m.sum -= memberSum(&old)
		record.Replaced = old.Replaced
		if old.Incarnation != c.Incarnation {
			record.Replaced = m.time
		}
	case m.members.Len() >= MembersMax:
		m.evictOldestMember()
	}
	m.members.Set(c.ID, record)
	m.sum += memberSum(&record)
	return Result{}
}

// evictOldestMember makes room for a new name: it removes the record whose announcement is the oldest. If
// that node is running, it finds itself missing from the records and announces itself again.
func (m *Machine) evictOldestMember() {
	var oldest *MemberRecord
	for _, record := range m.members.All() {
		if oldest == nil || record.Announced < oldest.Announced {
			oldest = record
		}
	}
	m.sum -= memberSum(oldest)
	m.members.Delete(oldest.ID)
}

// setVersion raises the version by one. Whether all servers know it, the proposer has looked; that
// this binary does, Apply has.
func (m *Machine) setVersion(c *SetVersion) Result {
	if c.Version != m.version+1 || m.nextVersion != 0 {
		return invalid("version")
	}
	m.nextVersion = c.Version
	m.emit(Event{Kind: EvVersionSet, Version: c.Version})
	return Result{}
}

// recordDigest keeps the latest digest of a node. It is not part of the digest itself. To make room for a
// new name, the report with the lowest index is removed, of several the one whose name is first.
func (m *Machine) recordDigest(c *Digest) Result {
	if !isText(c.Node, 1, NodeIDBytesMax) {
		return invalid("node")
	}
	if _, known := m.reports.Get(c.Node); !known && m.reports.Len() >= MembersMax {
		var oldest *Digest
		for _, report := range m.reports.All() {
			if oldest == nil || report.Index < oldest.Index {
				oldest = report
			}
		}
		m.reports.Delete(oldest.Node)
	}
	m.reports.Set(c.Node, *c)
	m.emit(Event{Kind: EvDigestReported, Digest: c})
	return Result{}
}

// forceRelease ends, whole, the tickets that hold a lock with a token that the operator saw.
func (m *Machine) forceRelease(c *ForceRelease) Result {
	switch {
	case !isName(c.Name):
		return invalid("name")
	case c.Token == 0 || c.Token > m.index:
		return invalid("token") // no such token was issued
	case !isText(c.Reason, 0, ReasonBytesMax):
		return invalid("reason")
	}
	keys := m.keyBuffer[:0]
	if lk, ok := m.locks.Get(c.Name); ok {
		for p := lk.holders.first; p != nil; p = p.next {
			if m.tickets.Peek(p.key).token <= c.Token {
				keys = append(keys, p.key)
			}
		}
	}
	m.keyBuffer = keys
	detail := &Detail{}
	for _, key := range keys {
		m.endTicket(key, Revoked, c.Reason)
		if len(detail.Ended) < EndedMax {
			detail.Ended = append(detail.Ended, key.ref())
		} else {
			detail.More++
		}
	}
	return Result{Detail: detail}
}
