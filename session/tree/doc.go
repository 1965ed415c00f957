// Package tree is the one ordered container of the pure core: a B-tree that
// copies on write, so that a snapshot of it is free.
//
// # Why a tree
//
// The core must give the same outputs on every node for the same inputs. A Go
// map is walked in another order each time, so each walk that reaches an output
// would need a sort, and the one that was forgotten would split the cluster. A
// tree has one order, that of its keys, whatever the history of its changes.
//
// A snapshot must not stop the world either. Clone takes the same few
// nanoseconds for ten records as for ten million, and its result is a tree of its
// own: one goroutine writes it to disk while the machine continues changing the
// original.
//
// # How it works
//
// Values are in the leaves; inner nodes hold keys and children. Keys and values
// lie in the nodes themselves, as parallel slices: a search touches keys only,
// and a record of its own is not an object of its own for the allocator and the
// collector.
//
// Every tree has an owner, an identity that no other tree has, and every node
// bears the owner of the tree that made it. A tree changes only nodes with its
// present owner and replaces others on its way by copies. Clone gives both sides
// a new owner, which at that moment no node bears: everything is shared, nothing
// is owned, and each side copies the nodes that it comes to change, once. An
// owner cannot return under a new meaning, because the nodes that bear it keep
// it alive.
//
// The invariants are numbered on Tree. The tests of this package check them after
// random changes, on all clones.
//
// # Goroutines
//
// A tree has no lock. Any number of goroutines may read one tree (Len, Get,
// Peek, Min, From, All) while it is not changed (Set, Insert, Delete,
// Ref, Clone, and writing through a pointer). Different trees, clones included,
// need no agreement: what two of them share is never written to. Handing a clone
// to another goroutine must order the two as any other hand-over does, as a go
// statement or a channel will.
//
// What a value points at, if it does, is not copied with it. A value of which
// clones are to be independent must hold no slice, map or pointer that is changed
// in place.
//
// # Pointers
//
// Peek, From and All give pointers for reading; Ref and Insert give pointers for
// writing. All point into a node:
//
//   - A pointer from Ref or Insert ends with the next Set, Insert, Delete or
//     Clone on that tree. Other calls, Ref included, leave it valid, so several
//     records may be held at once.
//   - A pointer from Peek, From or All ends with the next Ref too: Ref may put a
//     copy in place of the node.
//   - Nothing fails when an ended pointer is used. It may point at the record of
//     another key, at one that is no longer in the tree, or, after Clone, at one
//     that the clone reads on another goroutine. Keep pointers no longer than a
//     few lines, and never across a call that may change the tree.
//   - A tree must not be changed inside a range loop over it. Writing to a value
//     found by a loop is Ref's business, after the loop.
//
// # What it costs
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
// Keys that are inserted in rising order, as ids that are indexes are, fill the
// nodes to 31 entries of 32. Nodes filled at random hold 22 on average; under
// steady random insertion and deletion, 18. A tree with few keys costs a whole
// leaf, so one large tree with compound keys is better than many small ones.
//
// Measured with two cores of a shared AMD EPYC machine, values of 128 bytes, keys
// in random order, nanoseconds per call:
//
//	                            two uint64           string of 21 bytes
//	keys                      1e3   1e5   1e6         1e3   1e5   1e6
//	Get                        61   296   778         124   660  1171
//	Ref                        57   311   575         136   558  1342
//	Set, key present           59   353   641         153   573  1306
//	Delete and another Set    245   719  1436         392  1147  3037
//	All, per key                3    17    49           3    15    52
//	Clone                      77    71    75          81    80    74
//	Ref right after Clone    1352  2291  2807        1200  2996  5345
//
// From 1e5 keys on most of it is waiting for memory; repeated runs differ by a
// fifth.
//
// Nodes of 16, 32 and 64 entries were compared. In searching none of them is
// always first. Nodes of 64 make the first changes after a Clone up to half as
// dear again, for they copy twice the bytes (11 KB, against 6 and 4); nodes of 16
// take a tenth more memory, and are no faster to change. A minimal fill of 12 was
// chosen over 16, with which steady change makes three times as many splits, and
// over 8, with which it leaves a fifth more leaves. A free list of nodes has
// nothing to gain: a deletion and an insertion allocate 15 bytes on average, and
// a node could continue the list only when no clone can reach it.
package tree
