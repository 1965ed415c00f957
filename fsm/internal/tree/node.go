package tree

import "slices"

const (
	// fanOut is the most entries that a node holds; doc.go says how it was chosen.
	fanOut = 32
	// minFill is the least. Below half of fanOut, so that a node does not split
	// and merge in turn when a few keys come and go.
	minFill = fanOut * 3 / 8
	// mergeMax is the largest sum of two neighbours that become one node. Any
	// larger sum leaves both with minFill when it is shared evenly.
	mergeMax = 2*minFill - 1
	// maxDepth is out of reach: one level more would need minFill¹² entries.
	maxDepth = 12
)

// owner is an identity: two owners differ by address. It has a size because Go
// may give all values without one the same address.
type owner struct{ _ byte }

// node is a leaf, which has values, or an inner node, which has children. Keys and
// what belongs to them are parallel slices, so that a search touches keys only.
// Beyond their length they are zero, so that a removed value can be collected.
type node[K, V any] struct {
	owner    *owner // who may change this node; set once
	keys     []K
	values   []V
	children []*node[K, V]
}

// newNode returns an empty node with room for fanOut entries, in one allocation.
func newNode[K, V any](own *owner, leaf bool) *node[K, V] {
	if leaf {
		block := new(struct {
			node   node[K, V]
			keys   [fanOut]K
			values [fanOut]V
		})
		block.node = node[K, V]{owner: own, keys: block.keys[:0], values: block.values[:0]}
		return &block.node
	}
	block := new(struct {
		node     node[K, V]
		keys     [fanOut]K
		children [fanOut]*node[K, V]
	})
	block.node = node[K, V]{owner: own, keys: block.keys[:0], children: block.children[:0]}
	return &block.node
}

// copy returns a node with the same entries for another owner.
func (n *node[K, V]) copy(own *owner) *node[K, V] {
	c := newNode[K, V](own, n.children == nil)
	c.insert(0, n, 0, len(n.keys))
	return c
}

// search returns where key is, or where it would be inserted, among the entries
// from low on.
func (n *node[K, V]) search(key K, low int, compare func(a, b K) int) (at int, found bool) {
	high := len(n.keys)
	for low < high {
		middle := int(uint(low+high) / 2)
		switch order := compare(key, n.keys[middle]); {
		case order < 0:
			high = middle
		case order > 0:
			low = middle + 1
		default:
			return middle, true
		}
	}
	return low, false
}

// childIndex returns the entry of an inner node under which key belongs.
func (n *node[K, V]) childIndex(key K, compare func(a, b K) int) int {
	at, found := n.search(key, 1, compare)
	if found {
		return at
	}
	return at - 1
}

// insert copies the entries from low to high of another node of its level to the
// index at.
func (n *node[K, V]) insert(at int, from *node[K, V], low, high int) {
	n.keys = slices.Insert(n.keys, at, from.keys[low:high]...)
	if n.children != nil {
		n.children = slices.Insert(n.children, at, from.children[low:high]...)
	} else {
		n.values = slices.Insert(n.values, at, from.values[low:high]...)
	}
}

// remove takes out the entries from low to high.
func (n *node[K, V]) remove(low, high int) {
	n.keys = slices.Delete(n.keys, low, high)
	if n.children != nil {
		n.children = slices.Delete(n.children, low, high)
	} else {
		n.values = slices.Delete(n.values, low, high)
	}
}

// split moves the entries from cut on into a new right neighbour.
func (n *node[K, V]) split(cut int) *node[K, V] {
	right := newNode[K, V](n.owner, n.children == nil)
	right.insert(0, n, cut, len(n.keys))
	n.remove(cut, len(n.keys))
	return right
}

// balance shares the entries of two neighbours evenly.
func balance[K, V any](left, right *node[K, V]) {
	half := (len(left.keys) + len(right.keys) + 1) / 2
	if surplus := len(left.keys) - half; surplus > 0 {
		right.insert(0, left, half, len(left.keys))
		left.remove(half, len(left.keys))
	} else {
		left.insert(len(left.keys), right, 0, -surplus)
		right.remove(0, -surplus)
	}
}
