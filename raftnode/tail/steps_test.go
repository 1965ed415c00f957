package tail

import "math/bits"

// steps takes every step that is possible in a state.
func (m *model) steps(s *modelState) {
	for i := range m.nodes {
		m.campaign(s, i)
		m.append(s, i)
		m.crash(s, i)
		m.repay(s, i)
		for k := range m.nodes {
			if k != i {
				m.vote(s, i, k)
				m.ask(s, i, k)
			}
		}
		for t := range m.terms {
			m.deliver(s, t, i)
		}
	}
}

func (m *model) begin(s *modelState) *modelState {
	m.next = *s
	return &m.next
}

func (m *model) campaign(s *modelState, i int) {
	n := &s.nodes[i]
	if int(n.term) >= m.terms || n.role == leader || m.rule.owes(n.tail()) && !m.rule.campaigns {
		return
	}
	if m.changes > 0 && m.voters(s, &n.log, n.len)>>i&1 == 0 {
		return
	}
	x := m.begin(s)
	m.enter(x, i, n.term+1)
	c := &x.nodes[i]
	c.voted, c.role, c.votes = uint8(i+1), candidate, 1<<i
	m.elect(x, i)
	m.emit("n%d campaigns", i+1)
}

func (m *model) vote(s *modelState, i, k int) {
	c, v := &s.nodes[i], &s.nodes[k]
	if c.role != candidate || c.votes>>k&1 == 1 || v.term > c.term ||
		v.term == c.term && v.voted != 0 ||
		!c.endAt(c.len).end().Reaches(v.endAt(v.len).end()) ||
		!m.rule.votes(v.tail(), c.endAt(c.len).end()) {
		return
	}
	x := m.begin(s)
	if v.term < c.term {
		m.enter(x, k, c.term)
	}
	x.nodes[k].voted = uint8(i + 1)
	x.nodes[i].votes |= 1 << k
	m.elect(x, i)
	m.emit("n%d votes for n%d", k+1, i+1)
}

func (m *model) elect(x *modelState, i int) {
	c := &x.nodes[i]
	if !majority(m.voters(x, &c.log, c.len), c.votes) {
		return
	}
	t := c.term - 1
	c.role, c.votes = leader, 0
	x.led[t], x.leaderLog[t], x.leaderLen[t] = uint8(i+1), c.log, c.len
	c.acked[t] = c.len
}

func (m *model) append(s *modelState, i int) {
	n := &s.nodes[i]
	if n.role != leader {
		return
	}
	t := n.term - 1
	if n.pending > 0 {
		x := m.begin(s)
		m.flush(x, i)
		m.emit("n%d's disk has what it appended", i+1)
	}
	if int(n.len) == m.length {
		return
	}
	m.extend(s, i, 0)
	if m.changes == 0 || s.confChanges() >= m.changes {
		return
	}
	// A change of one server, when the one before and an entry of this term are committed; raft's
	// rule.
	voters := m.voters(s, &n.log, n.len)
	if s.committed[t] < n.len &&
		(s.committed[t] == 0 || m.voters(s, &n.log, s.committed[t]) != voters) ||
		s.committed[t] == 0 && n.len > 0 && m.changes > 1 {
		return
	}
	for k := range m.nodes {
		if next := voters ^ 1<<k; next != 0 && k != i {
			m.extend(s, i, next)
		}
	}
}

func (s *modelState) confChanges() (n int) {
	for t := range s.conf {
		for _, set := range s.conf[t] {
			if set != 0 {
				n++
			}
		}
	}
	return n
}

func (m *model) extend(s *modelState, i int, conf uint8) {
	x := m.begin(s)
	n := &x.nodes[i]
	t := n.term - 1
	n.log[n.len] = n.term
	x.conf[t][n.len] = conf
	n.len++
	x.leaderLog[t], x.leaderLen[t] = n.log, n.len
	if conf == 0 {
		n.pending++
	} else { // W2 of package raftnode
		n.pending = 0
		n.acked[t] = n.len
	}
	m.emit("n%d appends entry %d, term %d, configuration %d", i+1, int(n.len), int(t)+1, int(conf))
}

// deliver has a node take a message of the leader of a term. It is whole, or the power fails
// meanwhile.
func (m *model) deliver(s *modelState, t, i int) {
	n := &s.nodes[i]
	if s.led[t] == 0 || int(s.led[t]) == i+1 || int(n.term) > t+1 {
		return
	}
	common := uint8(0)
	for common < n.len && common < s.leaderLen[t] && n.log[common] == s.leaderLog[t][common] {
		common++
	}
	first := uint8(0)
	if int(n.term) == t+1 {
		first = n.acked[t] + 1
		if n.len < n.acked[t] { // it has lost some
			first = common
		}
	}
	for q := first; q <= s.leaderLen[t]; q++ {
		x := m.begin(s)
		y := &x.nodes[i]
		if int(n.term) < t+1 {
			m.enter(x, i, uint8(t+1))
		}
		y.role, y.votes = follower, 0
		if q > common {
			copyLog(y, &s.leaderLog[t], common, q)
		}
		y.acked[t] = max(y.acked[t], q)
		m.emit("n%d takes entries up to %d of term %d's leader", i+1, int(q), t+1)
		if q <= common || s.crashes == 0 {
			continue
		}
		// torn; with a record that names the append, or without it
		for whole := common; whole < q; whole++ {
			for _, named := range []bool{true, false} {
				x := m.begin(s)
				y := &x.nodes[i]
				if int(n.term) < t+1 {
					m.enter(x, i, uint8(t+1))
				}
				copyLog(y, &s.leaderLog[t], common, whole)
				y.role = follower
				x.crashes--
				m.restart(x, i)
				if named {
					y.owed = packEnd(m.rule.owe(y.owed.end(), endOf(s.leaderLog[t][q-1], q).end()))
				}
				m.emit("n%d starts again while it writes up to %d of term %d's leader: %d are "+
					"whole, recorded %d", i+1, int(q), t+1, int(whole), ones(named))
			}
		}
	}
}

func copyLog(n *modelNode, log *[lenMax]uint8, from, to uint8) {
	for k := from; k < lenMax; k++ {
		n.log[k] = 0
		if k < to {
			n.log[k] = log[k]
		}
	}
	n.len = to
	n.base = min(n.base, to)
}

func (m *model) restart(x *modelState, i int) {
	n := &x.nodes[i]
	n.role, n.votes = follower, 0
	n.answered, n.best, n.need = 0, 0, 0
	if m.rule.forgets {
		n.owed = 0
	}
}

func (m *model) crash(s *modelState, i int) {
	n := &s.nodes[i]
	if m.snapshots && s.leaderKnows(n) > n.base {
		x := m.begin(s)
		x.nodes[i].base = s.leaderKnows(n)
		m.emit("n%d takes a snapshot", i+1)
	}
	if s.crashes == 0 {
		return
	}
	for kept := n.durable(); kept <= n.len; kept++ {
		for _, named := range []bool{true, false} {
			if named && kept == n.len {
				continue
			}
			x := m.begin(s)
			x.crashes--
			y := &x.nodes[i]
			before := y.endAt(y.len)
			copyLog(y, &n.log, kept, kept)
			y.pending = 0
			m.restart(x, i)
			if named {
				y.owed = packEnd(m.rule.owe(y.owed.end(), before.end()))
			}
			m.emit("n%d starts again with %d entries, recorded %d", i+1, int(kept), ones(named))
		}
	}
	rotten := s.rotten | 1<<i
	if s.rots == 0 || 2*bits.OnesCount8(rotten) >= bits.OnesCount8(m.initial) {
		return
	}
	for lost := uint8(1); lost <= n.durable()-min(n.base, n.durable()); lost++ {
		x := m.begin(s)
		x.crashes--
		x.rots--
		x.rotten = rotten
		y := &x.nodes[i]
		before := y.endAt(y.durable())
		if m.lostRecord {
			before = endOf(n.term, endless)
		}
		copyLog(y, &n.log, y.durable()-lost, y.durable()-lost)
		y.pending = 0
		m.restart(x, i)
		y.owed = packEnd(m.rule.owe(y.owed.end(), before.end()))
		m.emit("n%d starts again, its last %d entries are rotten", i+1, int(lost))
	}
}

// leaderKnows is how much of a log is known to be committed.
func (s *modelState) leaderKnows(n *modelNode) (known uint8) {
	for t := range s.committed {
		c := s.committed[t]
		if c > 0 && c <= n.durable() && n.log[c-1] == s.leaderLog[t][c-1] {
			known = max(known, c)
		}
	}
	return known
}

// ask has k answer i, which owes.
func (m *model) ask(s *modelState, i, k int) {
	n, v := &s.nodes[i], &s.nodes[k]
	if !m.rule.owes(n.tail()) || n.owed == 0 {
		return
	}
	owed := n.owed.end()
	if v.role == leader && uint64(v.term) >= owed.Term {
		x := m.begin(s)
		m.flush(x, k)
		y := &x.nodes[k]
		m.lower(x, i, Answer[uint8]{
			From: uint8(k), Term: uint64(y.term), Log: y.endAt(y.len).end(), Leads: true,
		})
		m.emit("n%d asks n%d, which leads", i+1, k+1)
	}
	if n.answered>>k&1 == 1 {
		return
	}
	x := m.begin(s)
	m.answer(x, i, k)
	m.emit("n%d asks n%d", i+1, k+1)
}

func (m *model) answer(x *modelState, i, k int) {
	n, v := &x.nodes[i], &x.nodes[k]
	if !m.rule.careless {
		if term := uint8(n.owed >> 3); v.term <= term {
			m.enter(x, k, term+1)
		}
		m.flush(x, k)
	}
	n.answered |= 1 << k
	n.best = packEnd(Higher(n.best.end(), v.endAt(v.durable()).end()))
	if m.changes > 0 && !m.rule.alone {
		n.need |= m.voters(x, &v.log, v.durable())
	}
}

// repay strikes out what is not owed any more, and ends a round.
func (m *model) repay(s *modelState, i int) {
	n := &s.nodes[i]
	if n.owed == 0 {
		return
	}
	if !m.rule.owes(n.tail()) {
		x := m.begin(s)
		m.strike(x, i)
		m.emit("n%d owes nothing any more", i+1)
		return
	}
	if n.answered == 0 {
		return
	}
	x := m.begin(s)
	if m.round(x, i) {
		m.emit("n%d owes entry %d of term %d after a round", i+1, int(x.nodes[i].owed&7),
			int(x.nodes[i].owed>>3))
	}
}

// round ends a round, if it is complete.
func (m *model) round(x *modelState, i int) bool {
	n := &x.nodes[i]
	answers := m.answers[:0]
	term := n.owed.end().Term + 1
	for _, k := range m.members[n.answered] {
		a := Answer[uint8]{From: k, Term: term, Log: n.best.end(), Voters: m.members[n.need]}
		answers = append(answers, a)
	}
	return m.lower(x, i, answers...)
}

func (m *model) lower(x *modelState, i int, answers ...Answer[uint8]) bool {
	n := &x.nodes[i]
	sunk, missing := m.rule.sink(n.owed.end(), uint8(i), m.members[m.voters(x, &n.log, n.len)],
		answers)
	if len(missing) > 0 {
		return false
	}
	n.owed = packEnd(sunk)
	if !m.rule.keeps {
		n.answered, n.best, n.need = 0, 0, 0
	}
	if n.owed == 0 {
		m.strike(x, i)
	}
	return true
}

func ones(b bool) int {
	if b {
		return 1
	}
	return 0
}
