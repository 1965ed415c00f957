package tree

import "iter"

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

// ascend yields what is under n and not below low, if there is a low, and tells
// whether to continue. It calls itself because a node shared by several trees can
// have no pointer to its parent or its neighbour.
func (n *node[K, V]) ascend(low *K, compare func(a, b K) int, yield func(K, *V) bool) bool {
	at := 0
	if n.children == nil {
		if low != nil {
			at, _ = n.search(*low, 0, compare)
		}
		for ; at < n.count; at++ {
			if !yield(n.keys[at], &n.values[at]) {
				return false
			}
		}
		return true
	}
	if low != nil {
		at = n.childIndex(*low, compare)
	}
	for ; at < n.count; at++ {
		if !n.children[at].ascend(low, compare, yield) {
			return false
		}
		low = nil // only the first of them can have keys below it
	}
	return true
}
