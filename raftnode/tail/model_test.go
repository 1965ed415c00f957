package tail

import (
	"fmt"
	"math/bits"
)

// The model is Raft as far as a vote, an append and a commit go, on disks that lose the ends of
// logs. Every state that can be reached within the bounds is visited, and in each the rule of this
// package decides, or another one, which must fail.
//
// A message of a leader is delivered at any later time or never, also when that leader has ended:
// what a leader of a term has in its log is kept for each term. Its acknowledgement counts at once
// and for ever, also when the follower has lost the entry, and an entry is committed as soon as a
// majority has acknowledged it, also when the leader does not learn of it. So more counts as
// committed than in a cluster. A vote is counted when it is given. A node that starts again does so
// in one step.
const (
	nodesMax = 5
	termsMax = 4
	lenMax   = 3
	endless  = 7 // the index of an end that is unknown
)

type modelRole uint8

const (
	follower modelRole = iota
	candidate
	leader
)

// modelEnd is an End in a byte: term and index.
type modelEnd uint8

func endOf(term, index uint8) modelEnd { return modelEnd(term<<3 | index) }

func (e modelEnd) end() End {
	if e&7 == endless {
		return Unknown(uint64(e >> 3))
	}
	return End{uint64(e >> 3), uint64(e & 7)}
}

func packEnd(e End) modelEnd {
	return endOf(uint8(e.Term), uint8(min(e.Index, endless)))
}

type modelNode struct {
	log      [lenMax]uint8 // terms
	len      uint8
	pending  uint8 // of these, at the end, not on the disk: only of a leader
	term     uint8
	voted    uint8 // 1 + the node; 0 = none
	role     modelRole
	votes    uint8 // of a candidate, a set
	owed     modelEnd
	answered uint8 // a set: who has answered in this round
	best     modelEnd
	need     uint8           // a set: the voters of those that have answered
	base     uint8           // what is in a snapshot
	acked    [termsMax]uint8 // what it has acknowledged to the leader of each term
}

type modelState struct {
	nodes     [nodesMax]modelNode
	leaderLog [termsMax][lenMax]uint8
	leaderLen [termsMax]uint8
	led       [termsMax]uint8 // 1 + the leader; 0 = none
	committed [termsMax]uint8
	// the voters that the entry of this term and index sets; 0 = it is a command
	conf    [termsMax][lenMax]uint8
	crashes uint8 // left
	rots    uint8 // left
	rotten  uint8 // a set: the nodes whose tails have lost something
}

// bounds are how far a model goes.
type bounds struct {
	nodes, terms, length  int
	crashes, rots         int
	depth                 int   // 0 = until nothing is new
	initial               uint8 // the voters at first; 0 = all nodes
	changes               int   // of the configuration, in all
	snapshots, lostRecord bool
	liveness              bool
	first                 *modelState // where it begins; nil = with empty nodes
	mustLead              bool        // to commit
}

// modelRule is what a node does. The one to be tested is this package's.
type modelRule struct {
	owe       func(owed, cut End) End
	owes      func(State) bool
	votes     func(s State, candidate End) bool
	sink      func(owed End, self uint8, voters []uint8, answers []Answer[uint8]) (End, []uint8)
	careless  bool // a voter that is asked does not raise its term
	forgets   bool // what is owed is forgotten by the next start
	campaigns bool // a node that owes does
	keeps     bool // answers of earlier rounds count
	alone     bool // only the voters of a node's own configuration are asked
}

func theRule() modelRule {
	return modelRule{
		owe: Higher, owes: State.Owes, votes: State.MayVoteFor, sink: Sink[uint8],
	}
}

type model struct {
	bounds
	rule    modelRule
	members [1 << nodesMax][]uint8 // the nodes of each set
	answers [nodesMax]Answer[uint8]

	// hashes: that two of some millions are the same is as likely as one in a million
	seen map[uint64]struct{}
	next modelState
	// with traces all, otherwise those that are as far from the first one as this level, or one
	// further
	states []modelState
	at     int // the state whose steps are taken
	level  int
	failed string // what is wrong with the last state; "" = nothing

	traces bool
	from   []int       // with traces: from which state each one was reached
	wanted *modelState // the state to which the step is looked for
	step   string
}

func newModel(b bounds, rule modelRule) *model {
	m := &model{bounds: b, rule: rule, seen: make(map[uint64]struct{}, 1<<16)}
	if m.initial == 0 {
		m.initial = 1<<b.nodes - 1
	}
	for set := range m.members {
		for i := range uint8(nodesMax) {
			if set>>i&1 == 1 {
				m.members[set] = append(m.members[set], i)
			}
		}
	}
	return m
}

func (n *modelNode) durable() uint8 { return n.len - n.pending }

func (n *modelNode) endAt(length uint8) modelEnd {
	if length == 0 {
		return 0
	}
	return endOf(n.log[length-1], length)
}

func (n *modelNode) tail() State { return State{n.endAt(n.durable()).end(), n.owed.end()} }

// voters are those of a log's latest configuration.
func (m *model) voters(s *modelState, log *[lenMax]uint8, length uint8) uint8 {
	if m.changes > 0 {
		for i := int(length) - 1; i >= 0; i-- {
			if set := s.conf[log[i]-1][i]; set != 0 {
				return set
			}
		}
	}
	return m.initial
}

func majority(of, set uint8) bool {
	return 2*bits.OnesCount8(of&set) > bits.OnesCount8(of)
}

// enter takes a node into a later term. What is pending is written before.
func (m *model) enter(s *modelState, i int, term uint8) {
	n := &s.nodes[i]
	m.flush(s, i)
	n.term, n.voted, n.role, n.votes = term, 0, follower, 0
}

func (m *model) flush(s *modelState, i int) {
	n := &s.nodes[i]
	if n.pending > 0 {
		n.pending = 0
		n.acked[n.term-1] = n.len
	}
}

// commit records what is committed by now, and checks that each later leader had it.
func (m *model) commit(s *modelState) (lost string) {
	for t := range m.terms {
		length := s.leaderLen[t]
		voters := m.voters(s, &s.leaderLog[t], length)
		if m.mustLead && length > 0 &&
			(s.nodes[s.led[t]-1].role != leader || int(s.nodes[s.led[t]-1].term) != t+1) {
			length = 0
		}
		for i := length; i > s.committed[t]; i-- {
			if s.leaderLog[t][i-1] != uint8(t+1) {
				break
			}
			var have uint8
			for k := range m.nodes {
				if s.nodes[k].acked[t] >= i {
					have |= 1 << k
				}
			}
			if majority(voters, have) {
				s.committed[t] = i
				break
			}
		}
		for later := t + 1; later < m.terms; later++ {
			if s.led[later] > 0 && s.committed[t] > 0 && !m.holds(s, t, later) {
				lost = fmt.Sprintf("entry %d of the leader of term %d was committed, and the "+
					"leader of term %d has not got it",
					s.committed[t], t+1, later+1)
			}
		}
	}
	return lost
}

func (m *model) holds(s *modelState, t, later int) bool {
	c := s.committed[t]
	return s.leaderLen[later] >= c && s.leaderLog[later][c-1] == s.leaderLog[t][c-1]
}

// strike strikes out what is not owed any more. A node does that some time after.
func (m *model) strike(s *modelState, i int) {
	n := &s.nodes[i]
	n.owed, n.answered, n.best, n.need = 0, 0, 0, 0
	s.rotten &^= 1 << i
}
