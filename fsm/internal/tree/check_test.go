package tree

import (
	"cmp"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCheckFindsBrokenInvariants damages a sound tree of three levels in one way at a time: an
// invariant that survives all damage is not being tested.
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
		"a root with one child": {func(tree *Tree[int, int]) {
			tree.root.remove(1, len(tree.root.keys))
		}, "invariant 4"},
		"a length that is not": {func(tree *Tree[int, int]) { tree.length++ }, "invariant 5"},
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
			require.NoError(t, tree.check())
			damage.do(tree)
			require.ErrorContains(t, tree.check(), damage.want)
		})
	}
}

// check walks the whole tree and returns the first invariant of Tree that does
// not hold. It only reads.
func (t *Tree[K, V]) check() error {
	entries, err := t.checkNode(t.root, bounds[K]{level: 1, mayOwn: true})
	if err == nil && entries != t.length {
		err = fmt.Errorf("tree: invariant 5: the leaves hold %d entries, length is %d", entries,
			t.length)
	}
	return err
}

// bounds is what the nodes above a node require of it.
type bounds[K any] struct {
	low, high *K // keys are at least low (nil: left edge) and below high (nil: right edge)
	level     int
	mayOwn    bool // the parent is owned
}

// checkNode returns the number of entries in the leaves under n.
func (t *Tree[K, V]) checkNode(n *node[K, V], at bounds[K]) (entries int, err error) {
	leaf := at.level == t.depth
	if leaf != (n.values != nil) || leaf != (n.children == nil) ||
		len(n.values)+len(n.children) != len(n.keys) {
		return 0, fmt.Errorf("tree: invariant 1: level %d of %d has %d keys, %d values and %d "+
			"children", at.level, t.depth, len(n.keys), len(n.values), len(n.children))
	}
	if minimum := n.minCount(at); len(n.keys) < minimum || len(n.keys) > fanOut {
		return 0, fmt.Errorf("tree: invariant 4: a node at level %d of %d has %d entries, want "+
			"%d to %d", at.level, t.depth, len(n.keys), minimum, fanOut)
	}
	if err := t.checkOrder(n, at); err != nil {
		return 0, err
	}
	owned := n.owner == t.owner
	if owned && !at.mayOwn {
		return 0, fmt.Errorf("tree: invariant 6: a node at level %d is owned, its parent is shared",
			at.level)
	}
	if leaf {
		return len(n.keys), nil
	}
	for i, child := range n.children {
		childBounds := bounds[K]{low: &n.keys[i], high: at.high, level: at.level + 1, mayOwn: owned}
		if i == 0 {
			childBounds.low = at.low
		}
		if i+1 < len(n.keys) {
			childBounds.high = &n.keys[i+1]
		}
		sum, err := t.checkNode(child, childBounds)
		if err != nil {
			return 0, err
		}
		entries += sum
	}
	return entries, nil
}

func (n *node[K, V]) minCount(at bounds[K]) int {
	switch root := at.level == 1; {
	case n.children != nil && at.high == nil:
		return 2
	case root:
		return 0
	case at.high == nil:
		return 1
	default:
		return minFill
	}
}

func (t *Tree[K, V]) checkOrder(n *node[K, V], at bounds[K]) error {
	keys, last := n.keys, at.low
	if n.children != nil {
		if at.low != nil && t.compare(keys[0], *at.low) != 0 {
			return fmt.Errorf("tree: invariant 3: level %d begins with %v, its parent says %v",
				at.level, keys[0], *at.low)
		}
		keys = keys[1:]
	}
	for i := range keys {
		// A leaf may begin with the very key that its parent keeps for it.
		minimum := 1
		if n.children == nil && i == 0 {
			minimum = 0
		}
		if last != nil && t.compare(keys[i], *last) < minimum {
			return fmt.Errorf("tree: invariant 2: level %d: %v comes after %v", at.level,
				keys[i], *last)
		}
		last = &keys[i]
	}
	if at.high != nil && last != nil && t.compare(*last, *at.high) >= 0 {
		return fmt.Errorf("tree: invariant 2: level %d: %v is not below %v", at.level, *last,
			*at.high)
	}
	return nil
}
