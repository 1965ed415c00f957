package tail

import (
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEndsCompareByTermFirst(t *testing.T) {
	ends := []End{{}, {1, 1}, {1, 7}, Unknown(1), {2, 1}, {2, 2}, {3, 1}}
	for i, a := range ends {
		for k, b := range ends {
			assert.Equal(t, i >= k, a.Reaches(b), "%v, %v", a, b)
			assert.Equal(t, ends[max(i, k)], Higher(a, b))
			assert.Equal(t, ends[min(i, k)], lower(a, b))
		}
	}
}

func TestANodeThatOwesVotesForWhatReachesTheOwedEnd(t *testing.T) {
	s := State{Log: End{2, 5}, Owed: End{3, 7}}
	assert.True(t, s.Owes())
	assert.False(t, s.MayVoteFor(End{3, 6}))
	assert.False(t, s.MayVoteFor(End{2, 9}))
	assert.True(t, s.MayVoteFor(End{3, 7}))
	assert.True(t, s.MayVoteFor(End{4, 1}))
	for _, log := range []End{{3, 7}, {3, 8}, {4, 2}} {
		s.Log = log
		assert.False(t, s.Owes())
		assert.True(t, s.MayVoteFor(End{}), "the rest is Raft's")
	}
}

func TestARoundNeedsEveryVoter(t *testing.T) {
	voters := []string{"n1", "n2", "n3"}
	owed := End{3, 7}
	answer := func(from string, term uint64, log End) Answer[string] {
		return Answer[string]{From: from, Term: term, Log: log, Voters: voters}
	}
	for _, test := range []struct {
		name    string
		answers []Answer[string]
		sunk    End
		missing []string
	}{
		{"nobody", nil, owed, []string{"n2", "n3"}},
		{"one", []Answer[string]{answer("n2", 4, End{2, 2})}, owed, []string{"n3"}},
		{"all", []Answer[string]{answer("n2", 4, End{2, 2}), answer("n3", 9, End{2, 4})},
			End{2, 4}, nil},
		{"all are empty", []Answer[string]{answer("n2", 4, End{}), answer("n3", 9, End{})},
			End{}, nil},
		{"it never rises", []Answer[string]{answer("n2", 4, End{4, 9}), answer("n3", 4, End{})},
			owed, nil},
		{"a term that is not above the owed one",
			[]Answer[string]{answer("n2", 3, End{}), answer("n3", 4, End{})}, owed, []string{"n2"}},
		{"a voter that it did not know",
			[]Answer[string]{answer("n2", 4, End{}),
				{From: "n3", Term: 4, Voters: []string{"n1", "n3", "n4"}}}, owed, []string{"n4"}},
		{"the leader", []Answer[string]{{From: "n2", Term: 3, Log: End{3, 5}, Leads: true}},
			End{3, 5}, nil},
		{"a later leader", []Answer[string]{{From: "n2", Term: 5, Log: End{5, 8}, Leads: true}},
			owed, nil},
		{"an earlier leader", []Answer[string]{{From: "n2", Term: 2, Log: End{2, 8}, Leads: true}},
			owed, []string{"n2", "n3"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			sunk, missing := Sink(owed, "n1", voters, test.answers)
			assert.Equal(t, test.sunk, sunk)
			assert.Equal(t, test.missing, missing)
		})
	}
	sunk, missing := Sink(Unknown(3), "n1", voters,
		[]Answer[string]{answer("n2", 4, End{3, 2}), answer("n3", 4, End{2, 4})})
	assert.Equal(t, End{3, 2}, sunk)
	assert.Empty(t, missing)
}

// Bounds of the model, by how long they take: up to a second, some seconds, and more.
const (
	quick = iota
	slow
	long
)

func skipModel(t *testing.T, takes int) {
	if takes >= slow && testing.Short() || takes == long && os.Getenv("ZAMOK_TEST_ALL") == "" {
		t.Skip("these bounds take seconds, left out with -short, or a minute, with " +
			"ZAMOK_TEST_ALL only")
	}
}

// Within these bounds no reachable state has lost what was committed, and a cluster whose nodes all
// run recovers from each.
func TestNothingIsLost(t *testing.T) {
	for _, test := range []struct {
		name  string
		takes int
		bounds
	}{
		{"three nodes", quick, bounds{nodes: 3, terms: 2, length: 1, crashes: 3, rots: 1,
			liveness: true}},
		{"three nodes, two entries", slow,
			bounds{nodes: 3, terms: 2, length: 2, crashes: 2, rots: 1, liveness: true}},
		{"three nodes, three terms", slow,
			bounds{nodes: 3, terms: 3, length: 2, crashes: 1, rots: 1, liveness: true}},
		{"three nodes, damaged twice", quick,
			bounds{nodes: 3, terms: 3, length: 1, crashes: 2, rots: 2, liveness: true, depth: 13}},
		{"three nodes, many starts", long,
			bounds{nodes: 3, terms: 3, length: 2, crashes: 3, rots: 2, liveness: true, depth: 12}},
		{"five nodes", slow, bounds{nodes: 5, terms: 2, length: 1, crashes: 2, rots: 2,
			liveness: true, depth: 12}},
		{"five nodes, further", long,
			bounds{nodes: 5, terms: 2, length: 1, crashes: 2, rots: 2, liveness: true, depth: 15}},
		{"the record is lost, too", quick,
			bounds{nodes: 3, terms: 2, length: 1, crashes: 2, rots: 1, lostRecord: true,
				liveness: true}},
		{"snapshots", quick, bounds{nodes: 3, terms: 2, length: 2, crashes: 1, rots: 1,
			snapshots: true, liveness: true}},
		{"of four voters one is removed", quick,
			bounds{nodes: 4, terms: 2, length: 1, crashes: 1, rots: 1, changes: 1, liveness: true}},
		{"a fourth voter is added", slow,
			bounds{nodes: 4, terms: 2, length: 2, crashes: 1, rots: 1, changes: 1, initial: 0b111,
				depth: 12}},
		{"a fourth voter is added, further", long,
			bounds{nodes: 4, terms: 2, length: 2, crashes: 1, rots: 1, changes: 1, initial: 0b111}},
	} {
		t.Run(test.name, func(t *testing.T) {
			skipModel(t, test.takes)
			m := newModel(test.bounds, theRule())
			m.explore()
			t.Logf("%d states, %d steps deep", len(m.seen), m.level)
			if m.failed != "" {
				t.Fatal(m.trace())
			}
		})
	}
}

const stuck = "the cluster can't elect a leader"

// Simpler rules lose what was committed, or leave a cluster without a leader though all nodes run.
func TestSimplerRulesFail(t *testing.T) {
	three := bounds{nodes: 3, terms: 2, length: 1, crashes: 3, rots: 1, mustLead: true}
	longer := bounds{nodes: 3, terms: 3, length: 2, crashes: 1, rots: 1, mustLead: true}
	twice := bounds{nodes: 3, terms: 3, length: 2, crashes: 2, rots: 1, mustLead: true}
	live := bounds{nodes: 3, terms: 2, length: 1, crashes: 3, rots: 1, liveness: true}
	highest := func(answers []Answer[uint8]) (highest End) {
		for _, a := range answers {
			highest = Higher(highest, a.Log)
		}
		return highest
	}
	someAnswer := func(owed End, self uint8, voters []uint8, answers []Answer[uint8]) (End,
		[]uint8) {
		// with itself they are a majority
		if silent := len(voters) - 1 - len(answers); 2*(silent+1) > len(voters) {
			return owed, []uint8{self}
		}
		return lower(owed, highest(answers)), nil
	}
	for _, test := range []struct {
		name  string
		takes int
		want  string // "": it loses something
		bounds
		change func(*modelRule)
	}{
		{"nothing is owed", quick, "", three, func(r *modelRule) {
			r.owe = func(End, End) End { return End{} }
		}},
		{"a voter answers without a new term", quick, "", three,
			func(r *modelRule) { r.careless = true }},
		{"one answer is enough", quick, "", three, func(r *modelRule) {
			r.sink = func(owed End, _ uint8, _ []uint8, answers []Answer[uint8]) (End, []uint8) {
				return lower(owed, highest(answers)), nil
			}
		}},
		{"who cut it holds nothing", long, "",
			bounds{nodes: 5, terms: 2, length: 1, crashes: 2, rots: 2},
			func(r *modelRule) { r.sink = someAnswer }},
		{"of four voters not all answer", quick, "",
			bounds{nodes: 4, terms: 2, length: 1, crashes: 1, rots: 1, changes: 1, mustLead: true},
			func(r *modelRule) { r.sink = someAnswer }},
		{"the owed end does not sink", quick, stuck, live, func(r *modelRule) {
			r.sink = func(owed End, self uint8, voters []uint8, answers []Answer[uint8]) (End,
				[]uint8) {
				sunk, missing := Sink(owed, self, voters, answers)
				if len(missing) == 0 && sunk.Index >= owed.Index { // somebody has something there
					return owed, []uint8{self}
				}
				return End{}, missing
			}
		}},
		{"answers of earlier rounds count", quick, stuck, live,
			func(r *modelRule) { r.keeps = true }},
		{"ends compare by index only", slow, "", longer, func(r *modelRule) {
			r.votes = func(s State, c End) bool { return !s.Owes() || c.Index >= s.Owed.Index }
		}},
		{"what is owed is forgotten", quick, "", three, func(r *modelRule) { r.forgets = true }},
		{"it campaigns", quick, "", three, func(r *modelRule) { r.campaigns = true }},
		{"a later cut replaces an earlier one", slow, "", twice, func(r *modelRule) {
			r.owe = func(_, cut End) End { return cut }
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			skipModel(t, test.takes)
			rule := theRule()
			test.change(&rule)
			m := newModel(test.bounds, rule)
			m.explore()
			require.NotEmpty(t, m.failed)
			if test.want == stuck {
				require.Equal(t, stuck, m.failed)
			} else {
				require.Contains(t, m.failed, "was committed")
			}
			if testing.Verbose() {
				t.Logf("%d states\n%s", len(m.seen), m.trace())
			}
		})
	}
}

// What a node cut off had changed the configuration, twice. It asks the voters that it finds in the
// answers, too; those of its own log do not know what the later ones committed.
func TestVotersThatWereCutOffAreAsked(t *testing.T) {
	const n1, n2, n3, n4, n5 = 0, 1, 2, 3, 4
	// n1 leads in term 1, and adds n4. n3 and n4 have that. n4 leads in term 2, and adds n5. n3 and
	// n5 have that.
	var s modelState
	s.conf[0][0], s.conf[1][1] = 0b01111, 0b11111
	for i, n := range map[int]modelNode{
		n1: {log: [lenMax]uint8{1}, len: 1, term: 2, voted: n4 + 1, acked: [termsMax]uint8{1}},
		n2: {term: 1, voted: n1 + 1},
		n3: {log: [lenMax]uint8{1, 2}, len: 2, term: 2, voted: n4 + 1,
			acked: [termsMax]uint8{1, 2}},
		n4: {
			log: [lenMax]uint8{1, 2}, len: 2, term: 2, voted: n4 + 1, role: leader,
			acked: [termsMax]uint8{1, 2},
		},
		n5: {log: [lenMax]uint8{1, 2}, len: 2, term: 2, acked: [termsMax]uint8{0, 2}},
	} {
		s.nodes[i] = n
	}
	s.led[0], s.leaderLen[0], s.leaderLog[0] = n1+1, 1, s.nodes[n1].log
	s.led[1], s.leaderLen[1], s.leaderLog[1] = n4+1, 2, s.nodes[n4].log
	for _, alone := range []bool{true, false} {
		if !alone {
			skipModel(t, slow)
		}
		rule := theRule()
		rule.alone = alone
		m := newModel(bounds{
			nodes: 5, terms: 4, length: 2, crashes: 1, rots: 1, initial: 0b00111, changes: 2,
			depth: 7, first: &s,
		}, rule)
		m.explore()
		if alone {
			require.Contains(t, m.failed, "was committed")
		} else if m.failed != "" {
			t.Fatal(m.trace())
		}
		t.Logf("%d states, %d steps deep", len(m.seen), m.level)
	}
}

// The states that the model distinguishes do not depend on the names of its nodes.
func TestTheModelRenamesItsNodes(t *testing.T) {
	b := bounds{nodes: 3, terms: 2, length: 1, crashes: 1, rots: 1, depth: 7}
	m := newModel(b, theRule())
	m.traces = true
	m.explore()
	for _, s := range m.states {
		renamed := s
		swap := func(set *uint8) { *set = *set&^0b11 | *set&1<<1 | *set>>1&1 }
		renamed.nodes[0], renamed.nodes[1] = s.nodes[1], s.nodes[0]
		for i := range renamed.nodes {
			n := &renamed.nodes[i]
			for _, set := range []*uint8{&n.votes, &n.answered, &n.need} {
				swap(set)
			}
			n.voted = []uint8{0, 2, 1, 3}[n.voted]
		}
		for t := range renamed.led {
			renamed.led[t] = []uint8{0, 2, 1, 3}[renamed.led[t]]
		}
		swap(&renamed.rotten)
		keys := []uint64{s.nodes[0].word(&s, 0), s.nodes[1].word(&s, 1), s.nodes[2].word(&s, 2)}
		// of two that look the same, the order is not known
		if slices.Sort(keys); len(slices.Compact(keys)) == 3 {
			require.Equal(t, m.hash(&s), m.hash(&renamed))
		}
	}
}
