package clock

import (
	"cmp"
	"strconv"
)

// Stamp is a place in the replicated sequence: the term of the leader that put
// the entry there, and the index that the machine counted. Stamps order
// everything that ever happened in a cluster and never repeat.
type Stamp struct{ Term, Index uint64 }

// Compare is −1, 0 or +1 as s comes before u, is u, or comes after it.
func (s Stamp) Compare(u Stamp) int {
	if c := cmp.Compare(s.Term, u.Term); c != 0 {
		return c
	}
	return cmp.Compare(s.Index, u.Index)
}

// Before says whether s comes before u.
func (s Stamp) Before(u Stamp) bool { return s.Compare(u) < 0 }

// String prints "term:index".
func (s Stamp) String() string {
	return strconv.FormatUint(s.Term, 10) + ":" + strconv.FormatUint(s.Index, 10)
}
