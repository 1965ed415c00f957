package check

import (
	"cmp"
	"slices"
)

// fenced looks at what the resources took: after a token no smaller one, and no token that nobody
// was granted. Pauses and wrong clocks excuse nothing here.
func fenced(f *finder) {
	writes := make([]*Write, len(f.Writes))
	for i := range f.Writes {
		writes[i] = &f.Writes[i]
	}
	slices.SortStableFunc(writes, func(a, b *Write) int { return cmp.Compare(a.At, b.At) })
	issued := map[string]map[uint64]bool{}
	marks := map[string]*Write{} // the accepted exclusive write with the greatest token
	for _, w := range writes {
		f.looked++
		if issued[w.Resource] == nil {
			issued[w.Resource] = f.issued(w.Resource)
		}
		mark := marks[w.Resource]
		below := mark != nil && w.Token < mark.Token
		switch {
		case w.Accepted && below:
			f.wrong("resource %q: at %s it took a write of %s with token %d, "+
				"and at %s it had taken one of %s with token %d",
				w.Resource, f.at(w.At), w.Client, w.Token, f.at(mark.At), mark.Client, mark.Token)
		case w.Accepted && !issued[w.Resource][w.Token]:
			f.wrong("resource %q: at %s it took a write of %s with token %d, which nobody was granted",
				w.Resource, f.at(w.At), w.Client, w.Token)
		case !w.Accepted && !below:
			f.wrong("resource %q: at %s it refused a write of %s with token %d, though it had seen no greater one",
				w.Resource, f.at(w.At), w.Client, w.Token)
		}
		if w.Accepted && !w.Shared && !below {
			marks[w.Resource] = w
		}
	}
}

// issued are the tokens that grants of a lock are known to have carried.
func (v *view) issued(name string) map[uint64]bool {
	tokens := map[uint64]bool{}
	l := v.lock(name)
	for _, op := range l.grants {
		tokens[op.Token] = true
	}
	for _, b := range l.holds {
		tokens[b.Token] = true // its client may have died before it wrote down the answer
	}
	for _, ev := range l.events {
		if ev.Happened == EvGranted {
			tokens[ev.Token] = true
		}
	}
	return tokens
}
