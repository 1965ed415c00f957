package tree

import "math/rand/v2"

// shuffle returns 0 … size-1 in an order that depends on seed only.
func shuffle(size int, seed uint64) []int {
	return rand.New(rand.NewPCG(seed, 0)).Perm(size)
}
