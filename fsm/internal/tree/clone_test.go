package tree

import (
	"cmp"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestConcurrentReadsOfClones is for the race detector: clones,
// and clones of clones, are read on goroutines of their own while the tree they
// came from continues being changed in every way. Each must keep what it had.
func TestConcurrentReadsOfClones(t *testing.T) {
	rounds, size := 20, 5000
	if testing.Short() {
		rounds, size = 5, 2000
	}
	tree := New[int, int](cmp.Compare[int])
	for k := range size {
		tree.Set(k, 0)
	}
	var readers sync.WaitGroup
	for round := 1; round <= rounds; round++ {
		first := tree.Clone()
		second := first.Clone()
		for _, clone := range []*Tree[int, int]{first, second} {
			readers.Go(func() { readRound(t, clone, size, round-1) })
		}
		for k := range size {
			switch k % 3 {
			case 0:
				*tree.Ref(k) = round
			case 1:
				tree.Set(k, round)
			default:
				tree.Delete(k)
				*tree.Insert(k, -1) = round
			}
		}
	}
	readers.Wait()
	readRound(t, tree, size, rounds)
}

// readRound reads a tree in every way and expects each value to be round.
func readRound(t *testing.T, tree *Tree[int, int], size, round int) {
	if err := tree.check(); err != nil {
		t.Error(err)
	}
	if tree.Len() != size {
		t.Errorf("%d keys, want %d", tree.Len(), size)
	}
	next := 0
	for k, v := range tree.All() {
		if k != next || *v != round {
			t.Errorf("entry %d: key %d has %d, want %d", next, k, *v, round)
			return
		}
		next++
	}
	for k := 0; k < size; k += 7 {
		if v, ok := tree.Get(k); !ok || v != round {
			t.Errorf("key %d has %d, want %d", k, v, round)
			return
		}
	}
	for k := range tree.From(size / 2) {
		if k != size/2 {
			t.Errorf("From(%d) begins with %d", size/2, k)
		}
		break
	}
}

// TestConcurrentWritesToClones gives each side to a goroutine that
// changes all of it.
func TestConcurrentWritesToClones(t *testing.T) {
	const size = 5000
	tree := New[int, int](cmp.Compare[int])
	for k := range size {
		tree.Set(k, 0)
	}
	sides := []*Tree[int, int]{tree, tree.Clone(), tree.Clone()}
	var writers sync.WaitGroup
	for i, side := range sides {
		writers.Go(func() {
			for k := range size {
				if k%len(sides) == i {
					side.Delete(k)
				} else {
					*side.Ref(k) = i + 1
				}
			}
		})
	}
	writers.Wait()
	for i, side := range sides {
		require.NoError(t, side.check())
		for k := range size {
			v, ok := side.Get(k)
			if deleted := k%len(sides) == i; ok == deleted || ok && v != i+1 {
				t.Fatalf("side %d: key %d has %d, present: %t", i, k, v, ok)
			}
		}
	}
}

// TestChangeAfterCloneCopiesOnePath counts what the first change costs: one
// node a level, and nothing for the second change at the same place.
func TestChangeAfterCloneCopiesOnePath(t *testing.T) {
	tree := New[int, int](cmp.Compare[int])
	for k := range 10_000 {
		tree.Set(k, k)
	}
	before := tree.Clone()
	require.Equal(t, 3, tree.depth)

	tree.Ref(-1)
	tree.Delete(-1)
	require.Zero(t, ownedNodes(tree), "what is absent must not be copied")
	tree.Peek(5000)
	require.Zero(t, ownedNodes(tree), "a reader must not copy")

	*tree.Ref(5000) = 0
	require.Equal(t, tree.depth, ownedNodes(tree))
	*tree.Ref(5000) = 1
	require.Equal(t, tree.depth, ownedNodes(tree))
	require.Zero(t, ownedNodes(before))
	require.Equal(t, 5000, *before.Peek(5000))
}

func ownedNodes[K, V any](t *Tree[K, V]) int {
	var count func(n *node[K, V]) int
	count = func(n *node[K, V]) int {
		owned := 0
		if n.owner == t.owner {
			owned = 1
		}
		if n.children != nil {
			for _, child := range n.children {
				owned += count(child)
			}
		}
		return owned
	}
	return count(t.root)
}
