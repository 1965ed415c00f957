package tree

import (
	"cmp"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCheckFindsBrokenInvariants damages a sound tree of three levels in one way at
// a time: an invariant that no damage can break is not being tested.
func TestCheckFindsBrokenInvariants(t *testing.T) {
	edgeOf := func(tree *Tree[int, int], side func(n *node[int, int]) int) *node[int, int] {
		n := tree.root
		for n.children != nil {
			n = n.children[side(n)]
		}
		return n
	}
	first := func(*node[int, int]) int { return 0 }
	last := func(n *node[int, int]) int { return len(n.keys) - 1 }

	for name, damage := range map[string]struct {
		do   func(tree *Tree[int, int])
		want string
	}{
		"depth too large": {func(tree *Tree[int, int]) { tree.depth++ }, "invariant 1"},
		"depth too small": {func(tree *Tree[int, int]) { tree.depth-- }, "invariant 1"},
		"a node of both kinds": {func(tree *Tree[int, int]) {
			tree.root.values = []int{}
		}, "invariant 1"},
		"keys out of order": {func(tree *Tree[int, int]) {
			leaf := edgeOf(tree, first)
			leaf.keys[0], leaf.keys[1] = leaf.keys[1], leaf.keys[0]
		}, "invariant 2"},
		"a key twice": {func(tree *Tree[int, int]) {
			leaf := edgeOf(tree, first)
			leaf.keys[1] = leaf.keys[0]
		}, "invariant 2"},
		"a key in the leaf to its left": {func(tree *Tree[int, int]) {
			leaf := edgeOf(tree, first)
			leaf.keys[len(leaf.keys)-1] = math.MaxInt
		}, "invariant 2"},
		"a key in the leaf to its right": {func(tree *Tree[int, int]) {
			edgeOf(tree, last).keys[0] = -1
		}, "invariant 2"},
		"an inner node that begins elsewhere than its parent says": {func(tree *Tree[int, int]) {
			tree.root.children[1].keys[0]--
		}, "invariant 3"},
		"a leaf too empty": {func(tree *Tree[int, int]) {
			leaf := edgeOf(tree, first)
			tree.length -= len(leaf.keys) - 1
			leaf.remove(1, len(leaf.keys))
		}, "invariant 4"},
		"an empty leaf on the right edge": {func(tree *Tree[int, int]) {
			leaf := edgeOf(tree, last)
			tree.length -= len(leaf.keys)
			leaf.remove(0, len(leaf.keys))
		}, "invariant 4"},
		"a root with one child": {func(tree *Tree[int, int]) { tree.root.remove(1, len(tree.root.keys)) }, "invariant 4"},
		"a length that is not":  {func(tree *Tree[int, int]) { tree.length++ }, "invariant 5"},
		"an owned node under a shared one": {func(tree *Tree[int, int]) {
			tree.root.owner = new(owner)
		}, "invariant 6"},
	} {
		t.Run(name, func(t *testing.T) {
			tree := New[int, int](cmp.Compare[int])
			for k := range 5000 {
				tree.Set(k, k)
			}
			require.Equal(t, 3, tree.depth)
			require.NoError(t, tree.Check())
			damage.do(tree)
			require.ErrorContains(t, tree.Check(), damage.want)
		})
	}
}
