package tree

import (
	"iter"
	"slices"
)

// Tree is an ordered map from K to V. Its zero value is not usable; make one with New.
//
// Invariants, checked by the tests:
//
//  1. All leaves are at level depth, counting the root as level 1.
//  2. Keys rise strictly within a node, and all keys under entry i of an inner
//     node are at least its key i and below its key i+1. The first key of the
//     nodes on the left edge is exempt: no search looks at it.
//  3. The first key of an inner node is the key that its parent keeps for it.
//     So entries move between neighbours as they are.
//  4. A node has at most fanOut entries and at least minFill. Exempt from the
//     minimum: the root, and the right edge, where a leaf has at least one
//     entry. An inner node always has at least two.
//  5. The entries of all leaves add up to length.
//  6. The parent of a node that this tree owns is owned by this tree too. So
//     one look at a leaf's owner reports whether the whole path may be changed.
type Tree[K, V any] struct {
	compare func(a, b K) int
	owner   *owner // in the nodes that no other tree can reach; Clone replaces it
	root    *node[K, V]
	depth   int
	length  int
}

// New returns an empty tree ordered by compare, which answers as cmp.Compare
// does, depends on nothing but its arguments, and is called from every
// goroutine that uses the tree or one of its clones.
func New[K, V any](compare func(a, b K) int) *Tree[K, V] {
	own := new(owner)
	return &Tree[K, V]{compare: compare, owner: own, root: newNode[K, V](own, true), depth: 1}
}

// Len returns the number of keys.
func (t *Tree[K, V]) Len() int { return t.length }

// Get returns a copy of the value at key.
func (t *Tree[K, V]) Get(key K) (value V, found bool) {
	if v := t.Peek(key); v != nil {
		return *v, true
	}
	return value, false
}

// Peek returns a pointer to the value at key for reading, nil if there is none.
// It never copies a node, so the value may be shared with clones: writing
// through the pointer would change them as well. The pointer ends with the next
// call of Set, Insert, Delete, Ref or Clone on this tree.
func (t *Tree[K, V]) Peek(key K) *V {
	n := t.root
	for n.children != nil {
		n = n.children[n.childIndex(key, t.compare)]
	}
	if at, found := n.search(key, 0, t.compare); found {
		return &n.values[at]
	}
	return nil
}

// Ref returns a pointer to the value at key for changing it in place, nil if
// there is none. It first copies those nodes on the way that are shared with a
// clone; otherwise it allocates nothing. The pointer ends with the next call of
// Set, Insert, Delete or Clone on this tree; other Refs leave it valid.
func (t *Tree[K, V]) Ref(key K) *V {
	var p path[K, V]
	if !t.find(key, &p) {
		return nil
	}
	leaf := t.ownPath(&p)
	return &leaf.node.values[leaf.at]
}

// Set puts value at key, in place of the one that was there.
func (t *Tree[K, V]) Set(key K, value V) { t.Insert(key, value) }

// Insert is Set that also returns what Ref would return for key.
func (t *Tree[K, V]) Insert(key K, value V) *V {
	var p path[K, V]
	found := t.find(key, &p)
	leaf := t.ownPath(&p)
	if found {
		leaf.node.values[leaf.at] = value
	} else {
		if len(leaf.node.keys) == fanOut {
			leaf = t.makeRoom(&p)
		}
		leaf.node.keys = slices.Insert(leaf.node.keys, leaf.at, key)
		leaf.node.values = slices.Insert(leaf.node.values, leaf.at, value)
		t.length++
	}
	return &leaf.node.values[leaf.at]
}

// Delete removes key and returns the value that it had. Deleting an absent key
// changes and copies nothing.
func (t *Tree[K, V]) Delete(key K) (old V, found bool) {
	var p path[K, V]
	if !t.find(key, &p) {
		return old, false
	}
	leaf := t.ownPath(&p)
	old = leaf.node.values[leaf.at]
	leaf.node.remove(leaf.at, leaf.at+1)
	t.length--
	for d := t.depth - 1; d > 0 && len(p[d].node.keys) < minFill; d-- {
		if merged := t.rebalance(p[d-1]); !merged {
			break
		}
	}
	for t.root.children != nil && len(t.root.keys) == 1 {
		t.root = t.root.children[0]
		t.depth--
	}
	return old, true
}

// Min returns the lowest key and its value.
func (t *Tree[K, V]) Min() (key K, value V, found bool) {
	for k, v := range t.All() {
		return k, *v, true
	}
	return key, value, false
}

// Clone returns a second tree with the same contents, at a cost that does not
// depend on how many there are. From then on either may be changed, and cloned
// again, without the other seeing it, and each may be used on a goroutine of
// its own. Clone itself counts as a change of t: it must not run while another
// goroutine reads t.
func (t *Tree[K, V]) Clone() *Tree[K, V] {
	// What t owned until now is shared, so neither side may own it.
	t.owner = new(owner)
	c := *t
	c.owner = new(owner)
	return &c
}

// All goes through the tree in the order of the keys. The pointers are for
// reading, as those of Peek, and the tree must not be changed on the way: no
// Set, Insert, Delete, Ref or Clone. To change entries, collect the keys
// first, or go through a clone.
func (t *Tree[K, V]) All() iter.Seq2[K, *V] {
	return func(yield func(K, *V) bool) { t.root.ascend(nil, t.compare, yield) }
}

// From is All, beginning at the first key that is not below low.
func (t *Tree[K, V]) From(low K) iter.Seq2[K, *V] {
	return func(yield func(K, *V) bool) { t.root.ascend(&low, t.compare, yield) }
}

// ascend yields what is under n and not below low, if there is a low, and reports
// whether to continue. It calls itself because a node shared by several trees can
// have no pointer to its parent or its neighbour.
func (n *node[K, V]) ascend(low *K, compare func(a, b K) int, yield func(K, *V) bool) bool {
	at := 0
	if n.children == nil {
		if low != nil {
			at, _ = n.search(*low, 0, compare)
		}
		for ; at < len(n.keys); at++ {
			if !yield(n.keys[at], &n.values[at]) {
				return false
			}
		}
		return true
	}
	if low != nil {
		at = n.childIndex(*low, compare)
	}
	for ; at < len(n.keys); at++ {
		if !n.children[at].ascend(low, compare, yield) {
			return false
		}
		low = nil // only the first of them can have keys below it
	}
	return true
}
