package tree

import "fmt"

// Check walks the whole tree and returns the first invariant of Tree that does
// not hold. It only reads.
func (t *Tree[K, V]) Check() error {
	entries, err := t.checkNode(t.root, bounds[K]{level: 1, mayOwn: true})
	if err == nil && entries != t.length {
		err = fmt.Errorf("tree: invariant 5: the leaves hold %d entries, length is %d", entries, t.length)
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
	if leaf != (n.values != nil) || leaf != (n.children == nil) || len(n.values)+len(n.children) != len(n.keys) {
		return 0, fmt.Errorf("tree: invariant 1: level %d of %d has %d keys, %d values and %d children", at.level, t.depth, len(n.keys), len(n.values), len(n.children))
	}
	if minimum := n.minCount(at); len(n.keys) < minimum || len(n.keys) > fanOut {
		return 0, fmt.Errorf("tree: invariant 4: a node at level %d of %d has %d entries, want %d to %d", at.level, t.depth, len(n.keys), minimum, fanOut)
	}
	if err := t.checkOrder(n, at); err != nil {
		return 0, err
	}
	owned := n.owner == t.owner
	if owned && !at.mayOwn {
		return 0, fmt.Errorf("tree: invariant 6: a node at level %d is owned, its parent is shared", at.level)
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
			return fmt.Errorf("tree: invariant 3: level %d begins with %v, its parent says %v", at.level, keys[0], *at.low)
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
			return fmt.Errorf("tree: invariant 2: level %d: %v comes after %v", at.level, keys[i], *last)
		}
		last = &keys[i]
	}
	if at.high != nil && last != nil && t.compare(*last, *at.high) >= 0 {
		return fmt.Errorf("tree: invariant 2: level %d: %v is not below %v", at.level, *last, *at.high)
	}
	return nil
}
