package tree

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

// node is a leaf, which has values, or an inner node, which has kids. Keys and
// what belongs to them are parallel arrays, so that a search touches keys only;
// entries from count on are zero, so that a removed value can be collected.
type node[K, V any] struct {
	owner    *owner // who may change this node; set once
	values   *[fanOut]V
	children *[fanOut]*node[K, V]
	count    int
	keys     [fanOut]K
}

// newNode returns an empty node. Its two parts are one block, so that making one is one allocation.
func newNode[K, V any](own *owner, leaf bool) *node[K, V] {
	if leaf {
		block := new(struct {
			node   node[K, V]
			values [fanOut]V
		})
		block.node.owner, block.node.values = own, &block.values
		return &block.node
	}
	block := new(struct {
		node     node[K, V]
		children [fanOut]*node[K, V]
	})
	block.node.owner, block.node.children = own, &block.children
	return &block.node
}

// copy returns a node with the same entries for another owner.
func (n *node[K, V]) copy(own *owner) *node[K, V] {
	c := newNode[K, V](own, n.children == nil)
	c.count = n.count
	move(c, 0, n, 0, n.count)
	return c
}

// search returns where key is, or where it would be inserted, among the entries
// from low on.
func (n *node[K, V]) search(key K, low int, compare func(a, b K) int) (at int, found bool) {
	high := n.count
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

// insertGap makes room for one entry at the index at.
func (n *node[K, V]) insertGap(at int) {
	move(n, at+1, n, at, n.count-at)
	n.count++
}

// remove takes out the entry at the index at.
func (n *node[K, V]) remove(at int) {
	move(n, at, n, at+1, n.count-at-1)
	n.truncate(n.count - 1)
}

func (n *node[K, V]) truncate(count int) {
	clear(n.keys[count:n.count])
	if n.children != nil {
		clear(n.children[count:n.count])
	} else {
		clear(n.values[count:n.count])
	}
	n.count = count
}

// move copies entries between nodes of one level, or within one node, and
// leaves both counts to the caller.
func move[K, V any](to *node[K, V], toAt int, from *node[K, V], fromAt, entries int) {
	copy(to.keys[toAt:], from.keys[fromAt:fromAt+entries])
	if from.children != nil {
		copy(to.children[toAt:], from.children[fromAt:fromAt+entries])
	} else {
		copy(to.values[toAt:], from.values[fromAt:fromAt+entries])
	}
}

// split moves the entries from cut on into a new right neighbour.
func (n *node[K, V]) split(cut int) *node[K, V] {
	right := newNode[K, V](n.owner, n.children == nil)
	right.count = n.count - cut
	move(right, 0, n, cut, right.count)
	n.truncate(cut)
	return right
}

// merge appends the entries of the right neighbour, which it does not change.
func (n *node[K, V]) merge(right *node[K, V]) {
	move(n, n.count, right, 0, right.count)
	n.count += right.count
}

// balance shares the entries of two neighbours evenly.
func balance[K, V any](left, right *node[K, V]) {
	if count := (left.count - right.count) / 2; count > 0 {
		move(right, count, right, 0, right.count)
		move(right, 0, left, left.count-count, count)
		right.count += count
		left.truncate(left.count - count)
	} else if count < 0 {
		move(left, left.count, right, 0, -count)
		left.count -= count
		move(right, 0, right, -count, right.count+count)
		right.truncate(right.count + count)
	}
}
