// Package tree is the ordered container of the state machine: a B-tree that copies on write.
//
//	t := tree.New[uint64, string](cmp.Compare)
//	t.Set(7, "seven")
//	frozen := t.Clone() // for another goroutine, while t changes
//
// A Go map is walked in another order each time, so each walk that reaches an output would need a
// sort, and one that was forgotten would split the cluster. A tree has one order, that of its keys.
// A snapshot does not stop the machine, since Clone takes the same few nanoseconds for ten records
// as for ten million.
//
// # Model
//
// Values are in the leaves; inner nodes hold keys and children. Keys and values lie in the nodes
// themselves, as parallel slices: a search touches keys only, and a record is not an object of its
// own for the allocator and the collector.
//
// Every tree has an owner, an identity that no other tree has, and every node bears the owner of
// the tree that made it. A tree changes only nodes with its present owner and replaces others on
// its way by copies. Clone gives both sides a new owner, which at that moment no node bears: each
// side copies the nodes that it comes to change, once. The invariants are numbered on Tree.
//
// # Goroutines
//
// A tree has no lock. Any number of goroutines may read one tree (Len, Get, Peek, Min, From, All)
// while it is not changed (Set, Insert, Delete, Ref, Clone, and writing through a pointer).
// Different trees, clones included, need no agreement: what two of them share is never written to.
// What a value points at is not copied with it: it must not be changed in place.
//
// # Pointers
//
// Peek, From and All give pointers for reading; Ref and Insert give pointers for writing. All
// point into a node:
//
//   - A pointer from Ref or Insert ends with the next Set, Insert, Delete or Clone on that tree.
//     Other calls, Ref included, leave it valid.
//   - A pointer from Peek, From or All ends with the next Ref too: Ref may put a copy in place of
//     the node.
//   - Nothing fails when an ended pointer is used. It may point at the record of another key, at
//     none of the tree, or, after Clone, at one that the clone reads on another goroutine.
//   - A tree must not be changed inside a range loop over it.
//
// # Cost
//
// With n keys, h levels (3 at ten thousand keys, 4 or 5 at a million):
//
//	Len, Clone       constant
//	Get, Peek        about log₂ n comparisons, no allocation
//	Min              h steps, no allocation
//	From, All        a search, then a step per key, no allocation
//	Ref              as Peek; allocates h nodes at most, for those that are shared
//	Set, Insert      as Ref, and half a leaf moved if the key is new; allocates
//	                 when a node splits, about once in 16 new keys
//	Delete           as Ref, and half a leaf moved; of an absent key, as Peek
//
// Keys that are inserted in rising order, as ids that are indexes are, fill the nodes to 31
// entries of 32. Nodes filled at random hold 22 on average; under steady random insertion and
// deletion, 18. A tree with few keys costs a whole leaf, so one large tree with compound keys is
// better than many small ones. bench_test.go has measurements, and why nodes have 32 entries.
package tree
