package tail

import (
	"math"
	"slices"
)

// An End is where a log ends. Zero: it is empty, or nothing is owed.
type End struct{ Term, Index uint64 }

// Reaches reports whether a log that ends here ends at other or beyond, as a vote compares logs.
func (e End) Reaches(other End) bool {
	return e.Term > other.Term || e.Term == other.Term && e.Index >= other.Index
}

// Higher returns the higher of two ends.
func Higher(a, b End) End {
	if a.Reaches(b) {
		return a
	}
	return b
}

// Unknown is what a node owes that does not know what it may have acknowledged, in the terms up to
// this one.
func Unknown(term uint64) End { return End{term, math.MaxUint64} }

// State is what a node knows of the end of its log.
type State struct {
	Log  End // what is on its disk
	Owed End // what it may have acknowledged
}

// Owes reports whether the log ends below what the node may have acknowledged. If so it does not
// campaign, and takes no leadership that is handed over.
func (s State) Owes() bool { return !s.Log.Reaches(s.Owed) }

// MayVoteFor reports whether this node may elect a candidate whose log ends there. Raft has its own
// conditions beside.
func (s State) MayVoteFor(candidate End) bool { return !s.Owes() || candidate.Reaches(s.Owed) }

// An Answer is what a voter says to a node that owes.
type Answer[ID comparable] struct {
	From   ID
	Term   uint64 // on its disk before Log was read
	Log    End    // what was on its disk then
	Leads  bool   // in Term, when Log was read
	Voters []ID   // of the latest configuration in its log
}

// counts reports whether nothing above the log of the answer will come from the leader of the owed
// end's term.
func (a *Answer[ID]) counts(owed End) bool {
	return a.Term > owed.Term || a.leads(owed)
}

func (a *Answer[ID]) leads(owed End) bool { return a.Leads && a.Term >= owed.Term }

// Sink returns what a node owes after one round of answers, and which voters have to answer still
// in the same round for it to sink. The voters are those of the latest configuration in its log. It
// must have owed this before the round began.
func Sink[ID comparable](
	owed End, self ID, voters []ID, answers []Answer[ID]) (sunk End, missing []ID) {
	var highest End
	need := slices.Clone(voters)
	for i := range answers {
		a := &answers[i]
		if a.leads(owed) {
			return lower(owed, a.Log), nil
		}
		if a.counts(owed) {
			highest = Higher(highest, a.Log)
			need = append(need, a.Voters...)
		}
	}
	for _, id := range need {
		answered := slices.ContainsFunc(answers, func(a Answer[ID]) bool {
			return a.From == id && a.counts(owed)
		})
		if id != self && !answered && !slices.Contains(missing, id) {
			missing = append(missing, id)
		}
	}
	if len(missing) > 0 {
		return owed, missing
	}
	return lower(owed, highest), nil
}

func lower(a, b End) End {
	if a.Reaches(b) {
		return b
	}
	return a
}
