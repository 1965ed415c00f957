package fsm

// leaderStart begins an office. The first one of a history also sets where the index begins: above
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
	m.office = m.index
	m.emit(Event{Kind: EvOffice, Text: c.Node, Value: c.Nonce})
	return Result{}
}

// member records what a node says of itself. An id belongs to one data directory for ever: a node
// that comes back with another disk has forgotten what it promised.
func (m *Machine) member(c *Member) Result {
	if field := c.invalid(); field != "" {
		return invalid(field)
	}
	old, known := m.members.Get(c.ID)
	switch {
	case known && old.Incarnation != c.Incarnation:
		return Result{Code: OtherIncarnation, Detail: &Detail{Field: "incarnation"}}
	case known:
		m.sum -= memberSum(&old)
	case m.members.Len() >= MembersMax:
		return Result{Code: Limit, Detail: &Detail{Field: "members"}}
	}
	m.members.Set(c.ID, *c)
	m.sum += memberSum(c)
	return Result{}
}

// setRules raises the rules by one. Whether all servers know them, the proposer has looked; that
// this binary does, Apply has.
func (m *Machine) setRules(c *SetRules) Result {
	if c.Rules != m.rules+1 || m.raise != 0 {
		return invalid("rules")
	}
	m.raise = c.Rules
	m.emit(Event{Kind: EvRulesSet, Value: uint64(c.Rules)})
	return Result{}
}

// report keeps the latest digest of a node. It is not part of the digest itself.
func (m *Machine) report(c *Digest) Result {
	if !isText(c.Node, 1, NodeIDBytesMax) {
		return invalid("node")
	}
	if _, known := m.reports.Get(c.Node); !known && m.reports.Len() >= MembersMax {
		return Result{Code: Limit, Detail: &Detail{Field: "members"}}
	}
	m.reports.Set(c.Node, *c)
	m.emit(Event{Kind: EvReported, Text: c.Node, At: c.Index, Value: c.Value})
	return Result{}
}

// forceRelease ends, whole, the tickets that hold a lock with a token that the operator saw.
func (m *Machine) forceRelease(c *ForceRelease) Result {
	switch {
	case !isName(c.Name):
		return invalid("name")
	case c.Token == 0 || c.Token > m.index:
		return invalid("token") // nobody saw such a token
	case !isText(c.Reason, 0, ReasonBytesMax):
		return invalid("reason")
	}
	keys := m.keys[:0]
	if lk, ok := m.locks.Get(c.Name); ok {
		for p := lk.holders.first; p != nil; p = p.next {
			if m.tickets.Peek(p.key).token <= c.Token {
				keys = append(keys, p.key)
			}
		}
	}
	m.keys = keys
	detail := &Detail{}
	for _, key := range keys {
		m.end(key, Revoked, c.Reason)
		detail.Ended = append(detail.Ended, key.ref())
	}
	return Result{Detail: detail}
}
