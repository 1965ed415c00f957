package sim

import (
	"cmp"
	"slices"

	"zamok/fsm"
)

// checkHolds looks for two clients that believed at one moment to hold locks which exclude each
// other. All clients have the same clock here, so the moments compare.
func checkHolds(holds []Hold) []string {
	var found findingList
	byLock := map[string][]Hold{}
	for _, b := range holds {
		for _, item := range b.Items {
			byLock[item.Name] = append(byLock[item.Name], b)
		}
	}
	for name, held := range byLock {
		slices.SortFunc(held, func(a, b Hold) int { return cmp.Compare(a.From, b.From) })
		for i, b := range held {
			used := itemFor(b, name).Permits
			for _, before := range held[:i] {
				if before.To <= b.From {
					continue
				}
				one, other := itemFor(before, name), itemFor(b, name)
				if used += one.Permits; one.Mode == fsm.Exclusive || other.Mode == fsm.Exclusive {
					found.add("%q: %s believed in token %d from %v to %v, and %s in %d from %v to %v",
						name, before.Client, before.Token, before.From, before.To, b.Client, b.Token, b.From, b.To)
				}
			}
			if of := itemFor(b, name).Limit; used > of {
				found.add("%q: at %v there was belief in %d of %d permits", name, b.From, used, of)
			}
		}
	}
	return found.list()
}

func itemFor(b Hold, name string) fsm.Item {
	i := slices.IndexFunc(b.Items, func(it fsm.Item) bool { return it.Name == name })
	return b.Items[i]
}
