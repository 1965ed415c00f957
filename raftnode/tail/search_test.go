package tail

import (
	"slices"
	"strconv"
	"strings"
)

// emit is called with each state to which a step leads, which is m.next, and with the step in
// words.
func (m *model) emit(step string, about ...int) {
	failed := m.commit(&m.next)
	if m.wanted != nil {
		if m.next == *m.wanted {
			for _, number := range about {
				step = strings.Replace(step, "%d", strconv.Itoa(number), 1)
			}
			m.step, m.wanted = step, nil
		}
		return
	}
	if m.failed != "" {
		return
	}
	m.failed = failed
	hash := m.hash(&m.next)
	if _, known := m.seen[hash]; known && failed == "" {
		return
	}
	m.seen[hash] = struct{}{}
	m.states = append(m.states, m.next)
	if m.traces {
		m.from = append(m.from, m.at)
	}
}

// hash is the same for states that differ only in the names of the nodes, mostly.
func (m *model) hash(s *modelState) uint64 {
	var key [nodesMax]uint64
	var order, place [nodesMax]uint8
	for i := range m.nodes {
		key[i] = s.nodes[i].word(s, i)
		order[i] = uint8(i)
	}
	sorted := order[:m.nodes]
	// Insertion sort: a handful, often in order.
	for a := 1; a < len(sorted); a++ {
		for b := a; b > 0 && key[sorted[b]] < key[sorted[b-1]]; b-- {
			sorted[b], sorted[b-1] = sorted[b-1], sorted[b]
		}
	}
	for p, i := range sorted {
		place[i] = uint8(p)
	}
	set := func(old uint8) (renamed uint64) {
		for i := range m.nodes {
			renamed |= uint64(old>>i&1) << place[i]
		}
		return renamed
	}
	h := uint64(14695981039346656037)
	mix := func(v uint64) {
		h = (h ^ v) * 0x9e3779b97f4a7c15
		h ^= h >> 29
	}
	for _, i := range sorted {
		n := &s.nodes[i]
		voted := uint64(0)
		if n.voted > 0 {
			voted = 1 + uint64(place[n.voted-1])
		}
		mix(key[i])
		mix(voted | set(n.votes)<<3 | set(n.answered)<<8 | set(n.need)<<13)
	}
	for t := range m.terms {
		word := uint64(s.leaderLen[t]) | uint64(s.committed[t])<<4
		for k, term := range s.leaderLog[t] {
			word |= uint64(term)<<(8+3*k) | set(s.conf[t][k])<<(17+5*k)
		}
		if s.led[t] > 0 {
			word |= uint64(place[s.led[t]-1]+1) << 40
		}
		mix(word)
	}
	mix(uint64(s.crashes) | uint64(s.rots)<<4 | set(s.rotten)<<8)
	mix(h >> 32)
	return h
}

// word is what a node is, without the names of others.
func (n *modelNode) word(s *modelState, i int) uint64 {
	w := uint64(n.len) | uint64(n.pending)<<2 | uint64(n.term)<<4 | uint64(n.role)<<7 |
		uint64(n.owed)<<9 |
		uint64(n.best)<<15 | uint64(n.base)<<21
	for k, term := range n.log {
		w |= uint64(term) << (23 + 3*k)
	}
	for t, q := range n.acked {
		w |= uint64(q) << (32 + 2*t)
	}
	for t, l := range s.led {
		if int(l) == i+1 {
			w |= 1 << (40 + t)
		}
	}
	w |= uint64(s.rotten>>i&1) << 44
	if n.voted == uint8(i+1) {
		w |= 1 << 45
	}
	return w
}

// explore visits the states, nearest first, until nothing is new or one has failed.
func (m *model) explore() {
	m.next = modelState{}
	if m.first != nil {
		m.next = *m.first
	}
	m.next.crashes, m.next.rots = uint8(m.crashes), uint8(m.rots)
	m.emit("")
	for end := len(m.states); m.at < len(m.states) && m.failed == "" &&
		(m.depth == 0 || m.level < m.depth); m.level++ {
		for ; m.at < end && m.failed == ""; m.at++ {
			s := m.states[m.at]
			if m.liveness && !m.recovers(s) {
				m.failed = "the cluster can't elect a leader"
				m.states = append(m.states[:m.at], s)
				return
			}
			m.steps(&s)
		}
		if !m.traces && m.failed == "" {
			m.states = slices.Clone(m.states[end:])
			m.at = 0
		}
		end = len(m.states)
	}
}

// trace is how the last state was reached.
func (m *model) trace() string {
	again := newModel(m.bounds, m.rule)
	again.traces = true
	again.explore()
	var path []string
	for at := len(again.states) - 1; at > 0; at = again.from[at] {
		state := again.states[at]
		m.wanted = &state
		m.steps(&again.states[again.from[at]])
		path = append(path, m.step)
	}
	slices.Reverse(path)
	return strings.Join(append(path, again.failed), "\n")
}

// recovers reports whether a cluster elects a leader that every node follows, and none owes
// anything in the end, once all nodes run, reach each other and lose nothing more.
func (m *model) recovers(s modelState) bool {
	highest := uint8(0)
	for i := range m.nodes {
		highest = max(highest, s.nodes[i].term)
	}
	for i := range m.nodes {
		if s.nodes[i].role == leader && s.nodes[i].term == highest {
			m.flush(&s, i)
			for k := range m.nodes {
				// which the leader's answer ends
				if n := &s.nodes[k]; k != i && n.owed != 0 && m.rule.owes(n.tail()) {
					m.lower(&s, k, Answer[uint8]{
						From: uint8(i), Term: uint64(highest),
						Log: s.nodes[i].endAt(s.nodes[i].len).end(), Leads: true,
					})
				}
			}
			return m.allFollow(&s, i)
		}
	}
	for range 2 { // the first may have begun before something was lost
		for i := range m.nodes {
			m.askAll(&s, i)
		}
	}
	order := m.members[1<<m.nodes-1]
	for _, i := range slices.Backward(slices.SortedFunc(slices.Values(order), func(a, b uint8) int {
		return int(s.nodes[a].endAt(s.nodes[a].len)) - int(s.nodes[b].endAt(s.nodes[b].len))
	})) {
		if c := &s.nodes[i]; (!m.rule.owes(c.tail()) || m.rule.campaigns) && m.wins(&s, int(i)) {
			return m.allFollow(&s, int(i))
		}
	}
	return false
}

// askAll has a node that owes ask all others.
func (m *model) askAll(s *modelState, i int) {
	n := &s.nodes[i]
	if n.owed == 0 || !m.rule.owes(n.tail()) {
		return
	}
	for k := range m.nodes {
		if k != i && n.answered>>k&1 == 0 {
			m.answer(s, i, k)
		}
	}
	m.round(s, i)
}

// wins reports whether a majority elects a candidate, in a pre-vote and in the vote that follows at
// once.
func (m *model) wins(s *modelState, i int) bool {
	c := &s.nodes[i]
	votes := uint8(1) << i
	for k := range m.nodes {
		v := &s.nodes[k]
		if k != i && c.endAt(c.len).end().Reaches(v.endAt(v.len).end()) &&
			m.rule.votes(v.tail(), c.endAt(c.len).end()) {
			votes |= 1 << k
		}
	}
	return majority(m.voters(s, &c.log, c.len), votes)
}

// allFollow reports whether no node owes anything once it has the leader's log, which then ends
// with an entry of its term: it may be an earlier one.
func (m *model) allFollow(s *modelState, i int) bool {
	l := &s.nodes[i]
	for k := range m.nodes {
		n := &s.nodes[k]
		if k == i || !m.rule.owes(n.tail()) {
			continue
		}
		end := l.endAt(l.len)
		if l.role != leader { // it is elected just now, in a term above all
			end = endOf(7, l.len+1)
		}
		if (State{end.end(), n.owed.end()}).Owes() {
			return false
		}
	}
	return true
}
