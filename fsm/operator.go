package fsm

import (
	"cmp"
	"slices"

	"zamok/clock"
)

// execute begins an epoch. The first one of a history also sets where the index begins: above
// every older cluster, so that storage which remembers their tokens does not refuse ours.
func (c *LeaderStart) execute(m *Machine) Result {
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
	// does when a node has lost its data directory. Zero: it has not changed since the record was
	// made, or it changed while cluster time had not yet begun to advance.
	Replaced clock.Time
}

// execute records what a node announces about itself. A known name may come with another
// incarnation: to raft that is another server, so no promise of the old one depends on this record.
func (c *Member) execute(m *Machine) Result {
	if field := c.invalid(); field != "" {
		return invalid(field)
	}
	record := MemberRecord{Member: *c, Announced: m.index}
	old, known := m.members.Get(c.ID)
	switch {
	case known:
		record.Replaced = old.Replaced
		if old.Incarnation != c.Incarnation {
			record.Replaced = m.time
		}
	case m.members.Len() >= MembersMax:
		// If that node is running, it finds itself missing from the records and announces itself
		// again.
		oldest := slices.MinFunc(m.Members(),
			func(a, b MemberRecord) int { return cmp.Compare(a.Announced, b.Announced) })
		m.members.Delete(oldest.ID)
	}
	m.members.Set(c.ID, record)
	return Result{}
}

// execute raises the version by one. Apply has checked that this binary knows it. What proposes the
// command has to check that all servers do; nothing proposes it yet.
func (c *Upgrade) execute(m *Machine) Result {
	if c.Version != m.version+1 || m.nextVersion != 0 {
		return invalid("version")
	}
	m.nextVersion = c.Version
	m.emit(Event{Kind: EvUpgraded, Version: c.Version})
	return Result{}
}

// execute changes the longest ttl. The highest that it ever was stays known, for a restore.
func (c *SetLongestTTL) execute(m *Machine) Result {
	if c.TTL < LongestTTLMin || c.TTL > LongestTTLMax {
		return invalid("longest_ttl")
	}
	m.longestTTL, m.highestTTL = c.TTL, max(m.highestTTL, c.TTL)
	return Result{}
}

// execute passes a report, or a question, on to all nodes. The state machine keeps nothing of it,
// so the digest does not depend on what was reported.
func (c *Digest) execute(m *Machine) Result {
	if !isText(c.Node, 1, NodeIDBytesMax) {
		return invalid("node")
	}
	m.emit(Event{Kind: EvDigestReported, Digest: c})
	return Result{}
}

// execute ends, whole, the tickets that hold a lock with a token that the operator saw.
func (c *ForceRelease) execute(m *Machine) Result {
	switch {
	case !isName(c.Name):
		return invalid("name")
	case c.Token == 0 || c.Token > m.index:
		return invalid("token") // no such token was issued
	case !isText(c.Reason, 0, ReasonBytesMax):
		return invalid("reason")
	}
	keys := m.keyBuffer[:0]
	for key := range m.Holders(c.Name) {
		if m.tickets.Peek(key).token <= c.Token {
			keys = append(keys, key)
		}
	}
	m.keyBuffer = keys
	for _, key := range keys {
		m.endTicket(key, ForceReleased, c.Reason)
	}
	named := min(len(keys), EndedMax)
	return Result{Detail: &Detail{Ended: append([]TicketRef(nil), keys[:named]...),
		More: len(keys) - named}}
}
