package fair

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// model is the queue as lists.
type model struct {
	queue    Queue[int]
	waiting  map[From][]Item[int]
	identity map[From]string // under which a session waits
}

func (m *model) all(c Class) (items []Item[int], cost int) {
	for _, waiting := range m.waiting {
		for _, item := range waiting {
			if item.Class == c {
				items, cost = append(items, item), cost+item.Cost
			}
		}
	}
	return items, cost
}

// removed takes an item from a session that must be its first, or the first or the last of its
// class.
func (m *model) removed(t require.TestingT, item Item[int], of func(items []Item[int]) (end int)) {
	for s, items := range m.waiting {
		i := slices.Index(items, item)
		if i < 0 {
			continue
		}
		require.Equal(t, of(items), i)
		if m.waiting[s] = slices.Delete(items, i, i+1); len(items) == 1 {
			delete(m.waiting, s)
		}
		return
	}
	require.Fail(t, "it waits in no session", "%+v", item)
}

// isOfTheHeaviest checks F3 of an item that was evicted.
func (m *model) isOfTheHeaviest(t require.TestingT, item Item[int]) {
	var victim From
	bySession, byIdentity := make(map[From]int), make(map[string]int)
	for s, items := range m.waiting {
		for _, i := range items {
			if i.Class == item.Class {
				bySession[s] += i.Cost
				byIdentity[m.identity[s]] += i.Cost
			}
			if i.Value == item.Value {
				victim = s
			}
		}
	}
	own, all := bySession[victim], byIdentity[m.identity[victim]]
	for s := range m.waiting {
		require.LessOrEqual(t, byIdentity[m.identity[s]], all)
		if m.identity[s] == m.identity[victim] {
			require.LessOrEqual(t, bySession[s], own)
		}
	}
}

// F1, F2, F3 and F5, whatever comes in whichever order.
func TestWhatIsPutLeavesOnceAndInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := model{waiting: make(map[From][]Item[int]), identity: make(map[From]string)}
		number := 0
		class := rapid.Custom(func(t *rapid.T) Class {
			return Class(rapid.IntRange(0, 1).Draw(t, "class"))
		})
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				from := From{
					Identity: rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "identity"),
					Session:  uint64(rapid.IntRange(0, 6).Draw(t, "session")),
				}
				number++
				item := Item[int]{
					Value: number, Class: class.Draw(t, "class"),
					Cost: rapid.SampledFrom([]int{1, 500, quantum, 10 * quantum}).Draw(t, "cost"),
				}
				m.queue.Put(from, item)
				s := sessionOf(from)
				if len(m.waiting[s]) == 0 {
					m.identity[s] = from.Identity
				}
				m.waiting[s] = append(m.waiting[s], item)
			},
			"take": func(t *rapid.T) {
				c := class.Draw(t, "class")
				next := m.queue.Next(c)
				some := false
				for _, items := range m.waiting {
					some = some || items[0].Class == c
				}
				require.Equal(t, some, next != nil)
				if some {
					want := *next
					require.Equal(t, c, want.Class)
					require.Equal(t, want, *m.queue.Next(c), "looking changes nothing")
					item := m.queue.Take(c)
					require.Equal(t, want, item)
					m.removed(t, item, func([]Item[int]) int { return 0 })
				}
			},
			"evict": func(t *rapid.T) {
				c := class.Draw(t, "class")
				if m.queue.Len(c) == 0 {
					return
				}
				item := m.queue.Evict(c)
				m.isOfTheHeaviest(t, item)
				m.removed(t, item, func(items []Item[int]) (last int) {
					for i := range items {
						if items[i].Class == c {
							last = i
						}
					}
					return last
				})
			},
			"take the oldest": func(t *rapid.T) {
				normal, _ := m.all(Normal)
				oldest := m.queue.Oldest()
				require.Equal(t, len(normal) > 0, oldest != nil)
				if oldest == nil {
					return
				}
				item := m.queue.TakeOldest()
				require.Equal(t, slices.MinFunc(normal,
					func(a, b Item[int]) int { return a.Value - b.Value }), item)
				m.removed(t, item, func(items []Item[int]) int {
					return slices.IndexFunc(items,
						func(i Item[int]) bool { return i.Class == Normal })
				})
			},
			"": func(t *rapid.T) {
				identities := make(map[string]bool)
				for s := range m.waiting {
					identities[m.identity[s]] = true
				}
				for c := range classes {
					items, cost := m.all(c)
					require.Equal(t, len(items), m.queue.Len(c))
					require.Equal(t, cost, m.queue.Cost(c))
				}
				require.Len(t, m.queue.sessions, len(m.waiting))
				require.Len(t, m.queue.identities, len(identities))
			},
		})
	})
}

// F4, among sessions, and among identities with any number of sessions.
func TestSharesAreEqualInCost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q Queue[string]
		costs := rapid.SliceOfN(rapid.SampledFrom([]int{100, 600, quantum, 9 * quantum}), 2,
			6).Draw(t, "cost of each one's items")
		sessions := rapid.SliceOfN(rapid.IntRange(1, 3), len(costs), len(costs)).Draw(t,
			"sessions of each")
		put := func(i, s int) {
			identity := fmt.Sprint(i)
			q.Put(From{Identity: identity, Session: uint64(10*i + s + 1)},
				Item[string]{Value: identity, Cost: costs[i]})
		}
		for i := range costs {
			for s := range sessions[i] {
				put(i, s)
				put(i, s)
			}
		}
		largest := slices.Max(costs)
		served, bySession := make([]int, len(costs)), make(map[From]int)
		for range rapid.IntRange(1, 2000).Draw(t, "items") {
			q.Next(Normal)
			from := q.root.rotations[Normal].front.rotations[Normal].front.from
			var i, s int
			_, err := fmt.Sscan(q.Take(Normal).Value, &i)
			require.NoError(t, err)
			s = int(from.Session) - 10*i - 1
			served[i] += costs[i]
			bySession[from] += costs[i]
			put(i, s) // it waits all the time
		}
		bound := 2 * (quantum + largest)
		require.LessOrEqual(t, slices.Max(served)-slices.Min(served), bound)
		for i := range costs {
			var own []int
			for s := range sessions[i] {
				own = append(own, bySession[From{Session: uint64(10*i + s + 1)}])
			}
			require.LessOrEqual(t, slices.Max(own)-slices.Min(own), bound,
				"sessions of one identity")
		}
	})
}

// However much others have sent before, one who comes is behind one quantum of each of them, not
// behind all they sent.
func TestANewcomerWaitsForOneTurnOfEachOther(t *testing.T) {
	const large = 9 * quantum
	for name, from := range map[string]From{
		"another identity":          {Identity: "b", Session: 1 << 40},
		"a session of the same one": {Identity: "a", Session: 1 << 40},
	} {
		var q Queue[int]
		for i := range 4096 {
			q.Put(From{Identity: "a", Session: uint64(1 + i%3)}, Item[int]{Cost: large})
		}
		for range 100 {
			q.Take(Normal)
		}
		q.Put(from, Item[int]{Value: 1, Cost: 600})
		before := 0
		for q.Take(Normal).Value != 1 {
			before++
		}
		assert.LessOrEqual(t, before, 4, name)
	}
}

// An urgent item goes first only if nothing of its own session is before it.
func TestUrgentItemsOvertakeOtherSessionsOnly(t *testing.T) {
	var q Queue[string]
	q.Put(From{Session: 1}, Item[string]{Value: "lock", Cost: 1})
	q.Put(From{Session: 1}, Item[string]{Value: "unlock", Cost: 1, Class: Urgent})
	require.Nil(t, q.Next(Urgent))
	q.Put(From{Session: 2}, Item[string]{Value: "unlock of another", Cost: 1, Class: Urgent})
	assert.Equal(t, "unlock of another", q.Take(Urgent).Value)
	assert.Equal(t, "lock", q.Take(Normal).Value)
	assert.Equal(t, "unlock", q.Take(Urgent).Value)
	require.Zero(t, q.Len(Normal)+q.Len(Urgent))
}

// What waits with most makes room, from the end, and not the newcomer; among equals it is the
// newcomer.
func TestTheHeaviestMakesRoom(t *testing.T) {
	var q Queue[string]
	for i := range 10 {
		q.Put(From{Identity: "heavy", Session: 1},
			Item[string]{Value: fmt.Sprint("heavy ", i), Cost: 100})
	}
	q.Put(From{Identity: "heavy", Session: 2}, Item[string]{Value: "its other session", Cost: 300})
	q.Put(From{Identity: "light", Session: 3}, Item[string]{Value: "light", Cost: 900})
	q.Put(From{Identity: "heavy", Session: 1},
		Item[string]{Value: "unlock", Cost: 2000, Class: Urgent})
	assert.Equal(t, "heavy 9", q.Evict(Normal).Value)
	assert.Equal(t, "heavy 8", q.Evict(Normal).Value)
	q.Put(From{Identity: "light", Session: 4}, Item[string]{Value: "too much", Cost: 900})
	assert.Equal(t, "too much", q.Evict(Normal).Value)
	assert.Equal(t, "unlock", q.Evict(Urgent).Value, "it makes room for urgent items only")

	var equals Queue[int]
	for i := range 9 {
		equals.Put(From{Identity: fmt.Sprint(i), Session: uint64(i + 1)},
			Item[int]{Value: i, Cost: 1})
	}
	for i := range 9 {
		assert.Equal(t, 8-i, equals.Evict(Normal).Value)
	}
}

// Nothing is kept of what is empty but room for as much as an entry takes, and nothing is allocated
// for an item.
func TestAnEmptyQueueTakesNoMemory(t *testing.T) {
	var q Queue[int]
	for i := range 3 * spareMax {
		q.Put(From{Identity: fmt.Sprint(i % 7), Session: uint64(i + 1)}, Item[int]{Cost: 1})
	}
	for q.Len(Normal) > 0 {
		q.Take(Normal)
	}
	assert.Empty(t, q.sessions)
	assert.Empty(t, q.identities)
	assert.LessOrEqual(t, len(q.spareNodes), spareMax)
	assert.LessOrEqual(t, len(q.spareFlows), spareMax)
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		for i := range 64 {
			q.Put(From{Identity: "a", Session: uint64(i + 1)}, Item[int]{Cost: 1})
		}
		for range 64 {
			q.Take(Normal)
		}
	}))
}

func BenchmarkQueue(b *testing.B) {
	for _, sessions := range []int{1, 64, 1024, 16384} {
		b.Run(fmt.Sprint(sessions), func(b *testing.B) {
			var q Queue[[10]uint64]
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if q.Len(Normal) == sessions {
					q.Take(Normal)
				}
				q.Put(From{Identity: "a", Session: uint64(i%sessions + 1)},
					Item[[10]uint64]{Cost: 600})
			}
		})
	}
}
