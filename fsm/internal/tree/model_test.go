package tree

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// entry and model are the naive version of a tree: a sorted slice.
type entry struct{ key, value int }

type model []entry

func (m model) find(key int) (at int, found bool) {
	return slices.BinarySearchFunc(m, key,
		func(e entry, k int) int { return cmp.Compare(e.key, k) })
}

func (m *model) set(key, value int) {
	at, found := m.find(key)
	if !found {
		*m = slices.Insert(*m, at, entry{key: key})
	}
	(*m)[at].value = value
}

func (m *model) delete(key int) (int, bool) {
	at, found := m.find(key)
	if !found {
		return 0, false
	}
	old := (*m)[at].value
	*m = slices.Delete(*m, at, at+1)
	return old, true
}

// treeAndModel is a tree and what should be in it.
type treeAndModel struct {
	tree  *Tree[int, int]
	model model
}

func newTreeAndModel() *treeAndModel { return &treeAndModel{tree: New[int, int](cmp.Compare[int])} }

func (p *treeAndModel) clone() *treeAndModel {
	return &treeAndModel{tree: p.tree.Clone(), model: slices.Clone(p.model)}
}

func (p *treeAndModel) set(key, value int) {
	p.tree.Set(key, value)
	p.model.set(key, value)
}

func (p *treeAndModel) delete(t require.TestingT, key int) {
	got, had := p.tree.Delete(key)
	want, should := p.model.delete(key)
	require.Equal(t, should, had, "Delete(%d)", key)
	require.Equal(t, want, got, "Delete(%d)", key)
}

// verify compares everything that a reader can see, and the invariants.
func (p *treeAndModel) verify(t require.TestingT) {
	require.NoError(t, p.tree.check())
	require.NoError(t, checkUnusedEntriesZero(p.tree.root))
	require.Equal(t, len(p.model), p.tree.Len())
	at := 0
	for k, v := range p.tree.All() {
		require.Less(t, at, len(p.model), "All yields more than there is")
		if p.model[at] != (entry{k, *v}) {
			require.Equal(t, p.model[at], entry{k, *v}, "entry %d of All", at)
		}
		at++
	}
	require.Equal(t, len(p.model), at, "entries of All")
	k, v, ok := p.tree.Min()
	require.Equal(t, len(p.model) > 0, ok)
	if ok {
		require.Equal(t, p.model[0], entry{k, v})
	}
}

// checkUnusedEntriesZero reports an entry beyond a node's count that still holds something,
// which would keep what was deleted from being collected.
func checkUnusedEntriesZero(n *node[int, int]) error {
	for at := len(n.keys); at < fanOut; at++ {
		if n.keys[:fanOut][at] != 0 || n.values != nil && n.values[:fanOut][at] != 0 ||
			n.children != nil && n.children[:fanOut][at] != nil {
			return fmt.Errorf("entry %d beyond count %d is not zero", at, len(n.keys))
		}
	}
	if n.children != nil {
		for _, child := range n.children {
			if err := checkUnusedEntriesZero(child); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestTreeMatchesSortedSlice keeps several clones alive, changes one at a time, and
// after each step compares all of them with their own models.
func TestTreeMatchesSortedSlice(t *testing.T) {
	const keys = 1500 // deep enough for three levels, few enough to meet again
	rapid.Check(t, func(t *rapid.T) {
		pairs := []*treeAndModel{newTreeAndModel()}
		key := rapid.IntRange(1, keys)
		pick := func(t *rapid.T) *treeAndModel { return rapid.SampledFrom(pairs).Draw(t, "tree") }
		next := 0 // no value is written twice, so a change seen by a clone shows
		value := func() int { next++; return next }

		t.Repeat(map[string]func(*rapid.T){
			"Set": func(t *rapid.T) {
				pick(t).set(key.Draw(t, "key"), value())
			},
			"Insert": func(t *rapid.T) {
				p, k := pick(t), key.Draw(t, "key")
				v := p.tree.Insert(k, value())
				require.Equal(t, next, *v)
				*v = value()
				p.model.set(k, next)
			},
			"Ref": func(t *rapid.T) {
				p, k1, k2 := pick(t), key.Draw(t, "key"), key.Draw(t, "other key")
				v1, v2 := p.tree.Ref(k1), p.tree.Ref(k2)
				// The second Ref must leave the first pointer valid.
				for _, c := range []struct {
					key int
					ref *int
				}{{k1, v1}, {k2, v2}} {
					_, found := p.model.find(c.key)
					require.Equal(t, found, c.ref != nil, "Ref(%d)", c.key)
					if found {
						*c.ref = value()
						p.model.set(c.key, next)
					}
				}
			},
			"Get": func(t *rapid.T) {
				p, k := pick(t), key.Draw(t, "key")
				got, ok := p.tree.Get(k)
				at, found := p.model.find(k)
				require.Equal(t, found, ok)
				require.Equal(t, found, p.tree.Peek(k) != nil)
				if found {
					require.Equal(t, p.model[at].value, got)
					require.Equal(t, p.model[at].value, *p.tree.Peek(k))
				}
			},
			"From": func(t *rapid.T) {
				p, k := pick(t), rapid.IntRange(0, keys+1).Draw(t, "key")
				stop := rapid.IntRange(1, 100).Draw(t, "entries until break")
				at, _ := p.model.find(k)
				want := p.model[at:min(at+stop, len(p.model))]
				got := model{}
				for k, v := range p.tree.From(k) {
					got = append(got, entry{k, *v})
					if len(got) == stop {
						break
					}
				}
				require.True(t, slices.Equal(want, got), "From(%d): want %v, got %v", k, want, got)
			},
			"Delete": func(t *rapid.T) {
				pick(t).delete(t, key.Draw(t, "key"))
			},
			"SetRun": func(t *rapid.T) {
				p, from := pick(t), key.Draw(t, "from")
				step := rapid.SampledFrom([]int{1, -1, 7}).Draw(t, "step")
				for i := range rapid.IntRange(1, 300).Draw(t, "keys") {
					if k := from + i*step; 1 <= k && k <= keys {
						p.set(k, value())
					}
				}
			},
			"DeleteRun": func(t *rapid.T) {
				p, from := pick(t), key.Draw(t, "from")
				step := rapid.SampledFrom([]int{1, -1, 3}).Draw(t, "step")
				for i := range rapid.IntRange(1, 300).Draw(t, "keys") {
					p.delete(t, from+i*step)
				}
			},
			"Clone": func(t *rapid.T) {
				p := pick(t)
				if len(pairs) == 5 { // the oldest is forgotten
					pairs = slices.Delete(pairs, 0, 1)
				}
				pairs = append(pairs, p.clone())
			},
			"": func(t *rapid.T) {
				for _, p := range pairs {
					p.verify(t)
				}
			},
		})
	})
}

// TestBuildAndEmptyLargeTrees grows a tree and takes it down to nothing, in
// every order that a real use has, with a clone taken at the top.
func TestBuildAndEmptyLargeTrees(t *testing.T) {
	size := 40_000 // four levels
	if testing.Short() {
		size = 5_000
	}
	const seed = 1
	shuffled := shuffle(size, seed)
	orders := map[string]func(i int) int{
		"upwards":   func(i int) int { return i + 1 },
		"downwards": func(i int) int { return size - i },
		"random":    func(i int) int { return shuffled[i] + 1 },
		"inwards": func(i int) int {
			if i%2 == 0 {
				return i/2 + 1
			}
			return size - i/2
		},
	}
	for build, insert := range orders {
		for tearDown, remove := range orders {
			t.Run(build+" then "+tearDown, func(t *testing.T) {
				t.Logf("seed %d", seed)
				tree := New[int, int](cmp.Compare[int])
				for i := range size {
					tree.Set(insert(i), i)
					if i%(size/10) == 0 {
						require.NoError(t, tree.check())
					}
				}
				require.NoError(t, tree.check())
				full := tree.Clone()
				for i := range size {
					_, had := tree.Delete(remove(i))
					require.True(t, had)
					if i%(size/10) == 0 {
						require.NoError(t, tree.check())
					}
				}
				require.NoError(t, tree.check())
				require.Zero(t, tree.Len())
				require.Equal(t, 1, tree.depth)

				require.NoError(t, full.check())
				next := 1
				for k := range full.All() {
					if k != next {
						require.Equal(t, next, k)
					}
					next++
				}
				require.Equal(t, size+1, next)
			})
		}
	}
}

// TestAscendingInsertsFillNodes holds the promise that counted ids pack densely.
func TestAscendingInsertsFillNodes(t *testing.T) {
	const size = 5_000
	tree := New[int, int](cmp.Compare[int])
	for i := range size {
		tree.Set(i, i)
	}
	leaves := countLeaves(tree.root)
	require.LessOrEqual(t, leaves, size/(fanOut-1)+1)
}

func countLeaves[K, V any](n *node[K, V]) int {
	if n.children == nil {
		return 1
	}
	leaves := 0
	for _, child := range n.children {
		leaves += countLeaves(child)
	}
	return leaves
}

// TestStringKeys runs a small tree with keys that are not numbers, compared in
// an order that is not theirs by nature.
func TestStringKeys(t *testing.T) {
	byLength := func(a, b string) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	}
	tree := New[string, int](byLength)
	var want []string
	for i := range 1000 {
		name := fmt.Sprint("lock/", i*i)
		tree.Set(name, i)
		want = append(want, name)
	}
	sort.Slice(want, func(i, j int) bool { return byLength(want[i], want[j]) < 0 })
	var got []string
	for name := range tree.All() {
		got = append(got, name)
	}
	require.Equal(t, want, got)
	require.NoError(t, tree.check())
}
