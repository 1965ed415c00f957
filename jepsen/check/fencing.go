package check

import (
	"cmp"
	"slices"
)

// checkFencing looks at what the resources accepted: after a token no smaller one, and no token that was never
// granted. Pauses and wrong clocks excuse nothing here.
func checkFencing(f *checker) {
	writes := make([]*Write, len(f.Writes))
	for i := range f.Writes {
		writes[i] = &f.Writes[i]
	}
	slices.SortStableFunc(writes, func(a, b *Write) int { return cmp.Compare(a.At, b.At) })
	issued := map[string]map[uint64]bool{}
	highestWrites := map[string]*Write{} // the accepted exclusive write with the greatest token
	for _, w := range writes {
		f.examined++
		if issued[w.Resource] == nil {
			issued[w.Resource] = f.issuedTokens(w.Resource)
		}
		highest := highestWrites[w.Resource]
		below := highest != nil && w.Token < highest.Token
		switch {
		case w.Accepted && below:
			f.violationf("resource %q: at %s it accepted a write of %s with token %d, "+
				"and at %s it had accepted one of %s with token %d",
				w.Resource, f.formatTime(w.At), w.Client, w.Token, f.formatTime(highest.At), highest.Client, highest.Token)
		case w.Accepted && !issued[w.Resource][w.Token]:
			f.violationf("resource %q: at %s it accepted a write of %s with token %d, which was never granted",
				w.Resource, f.formatTime(w.At), w.Client, w.Token)
		case !w.Accepted && !below:
			f.violationf("resource %q: at %s it refused a write of %s with token %d, though it had seen no greater one",
				w.Resource, f.formatTime(w.At), w.Client, w.Token)
		}
		if w.Accepted && !w.Shared && !below {
			highestWrites[w.Resource] = w
		}
	}
}

// issuedTokens are the tokens that grants of a lock are known to have carried.
func (v *historyIndex) issuedTokens(name string) map[uint64]bool {
	tokens := map[uint64]bool{}
	l := v.lock(name)
	for _, op := range l.grants {
		tokens[op.Token] = true
	}
	for _, b := range l.holds {
		tokens[b.Token] = true // its client may have died before it wrote down the answer
	}
	for _, ev := range l.events {
		if ev.Kind == EvGranted {
			tokens[ev.Token] = true
		}
	}
	return tokens
}
