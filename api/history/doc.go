// Package history remembers what a node saw applied: the latest events of tickets and sessions, for watches, and the
// cluster times of indexes, for ages that are shown to people. It is bounded in bytes however many clients watch.
//
// An entry is added under the state machine's lock, which touches the watched prefixes that its names have. Run then
// reads for each feed, which is what all watches of a prefix and a caller are sent, makes one batch of what happened
// since the last one, and wakes the watches, which send the same encoded frame:
//
//	Applied ─ touched prefixes ► Run ─ batches ► feed ─ wakes ► Watch.Send ─ frames ► stream
//	   └──────── ring of events ──┘                                  │
//	                    └────────── what is not kept ────────────────┘
//
// # Invariants
//
//	Y1  All events of an index are in one frame, and each is sent once, in order, or the watch ends with COMPACTED.
//	Y2  No index is sent before the events up to it that are for the watch.
//	Y3  What an entry costs does not depend on watches of other prefixes, nor, under the state machine's lock, on how
//	    many watches a prefix has.
//	Y4  What a watch is not sent does not change when it is sent something.
//
// The files: history.go, the ring and the times; feed.go, prefixes, feeds and Run; watch.go, a watch.
package history
