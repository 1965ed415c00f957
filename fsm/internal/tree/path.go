package tree

import "slices"

// step is one level of a descent: the entry at of node. In a leaf it may be
// where a key would be inserted.
type step[K, V any] struct {
	node *node[K, V]
	at   int
}

// path is a descent from the root; its first depth steps are in use. Nodes have
// no pointer to their parent, for a shared node can have several.
type path[K, V any] [maxDepth]step[K, V]

// find fills p with the way to key and reports whether it is there. It changes
// nothing: what is absent should cost no copy.
func (t *Tree[K, V]) find(key K, p *path[K, V]) (found bool) {
	n, d := t.root, 0
	for ; n.children != nil; d++ {
		at := n.childIndex(key, t.compare)
		p[d] = step[K, V]{n, at}
		n = n.children[at]
	}
	at, found := n.search(key, 0, t.compare)
	p[d] = step[K, V]{n, at}
	return found
}

// ownPath puts a copy in place of every shared node on the path and returns the
// step at the leaf.
func (t *Tree[K, V]) ownPath(p *path[K, V]) *step[K, V] {
	leaf := &p[t.depth-1]
	if leaf.node.owner == t.owner {
		return leaf
	}
	if t.root.owner != t.owner {
		t.root = t.root.copy(t.owner)
		p[0].node = t.root
	}
	for d := 1; d < t.depth; d++ {
		p[d].node = t.ownChild(p[d-1].node, p[d-1].at)
	}
	return leaf
}

// ownChild returns the child at the index at of an owned parent, copied if it is
// shared.
func (t *Tree[K, V]) ownChild(parent *node[K, V], at int) *node[K, V] {
	child := parent.children[at]
	if child.owner != t.owner {
		child = child.copy(t.owner)
		parent.children[at] = child
	}
	return child
}

// makeRoom splits the full leaf at the end of an owned path, and before it the
// full nodes right above it, from the top down, so that each split finds room in
// its parent. It returns the step at the leaf, where the new entry belongs.
func (t *Tree[K, V]) makeRoom(p *path[K, V]) *step[K, V] {
	// Ids are counted upwards, so many trees grow at their end only. Cut in the
	// middle, they would leave a trail of half-empty nodes.
	cut := fanOut / 2
	if t.appendsAtEnd(p) {
		cut = fanOut - 1
	}
	d := t.depth - 1
	for d >= 0 && len(p[d].node.keys) == fanOut {
		d--
	}
	if d < 0 {
		t.grow(p)
		d = 0
	}
	for d++; d < t.depth; d++ {
		p.split(d, cut)
	}
	return &p[t.depth-1]
}

// appendsAtEnd reports whether the path leads past the last key.
func (t *Tree[K, V]) appendsAtEnd(p *path[K, V]) bool {
	for _, s := range p[:t.depth-1] {
		if s.at < len(s.node.keys)-1 {
			return false
		}
	}
	leaf := p[t.depth-1]
	return leaf.at == len(leaf.node.keys)
}

// grow puts a new root with one child on top.
func (t *Tree[K, V]) grow(p *path[K, V]) {
	root := newNode[K, V](t.owner, false)
	root.keys = root.keys[:1]
	root.children = append(root.children, t.root)
	copy(p[1:], p[:t.depth])
	p[0] = step[K, V]{root, 0}
	t.root = root
	t.depth++
}

// split cuts the node at level d in two and leads the path on through the half
// that has its entry. The step above is done with and stays as it was.
func (p *path[K, V]) split(d, cut int) {
	parent, left := &p[d-1], &p[d]
	right := left.node.split(cut)
	parent.node.keys = slices.Insert(parent.node.keys, parent.at+1, right.keys[0])
	parent.node.children = slices.Insert(parent.node.children, parent.at+1, right)
	// A new key that falls between the halves goes to the left one: it is below
	// the key that its parent now keeps for the right one.
	if left.at > cut || left.at == cut && right.children != nil {
		left.node = right
		left.at -= cut
	}
}

// rebalance helps the child at s, which has too few entries, out of a neighbour:
// they become one node, and the parent has an entry less, or share what they
// have. There is a neighbour, for an inner node has at least two entries.
func (t *Tree[K, V]) rebalance(s step[K, V]) (merged bool) {
	parent, r := s.node, max(s.at, 1)
	left, right := t.ownChild(parent, r-1), parent.children[r]
	if len(left.keys)+len(right.keys) <= mergeMax {
		left.insert(len(left.keys), right, 0, len(right.keys))
		parent.remove(r, r+1)
		return true
	}
	right = t.ownChild(parent, r)
	balance(left, right)
	parent.keys[r] = right.keys[0]
	return false
}
