// Package history remembers what a node saw applied: the latest events of tickets and sessions, for
// watches, and the cluster times of indexes, for ages that are shown to people. It is bounded in
// bytes however many clients watch.
//
//	h := history.New()
//	go h.Run(stopping)
//	h.Applied(applied) // for each entry, under the state machine's lock
//	w, err := h.Watch(ctx, prefix, from, caller, view)
//	err = w.Send(stream.SendMsg) // until the watch ends
//
// A feed is what all watches of one prefix and one caller are sent. Applied adds the events of an
// entry, and records which watched prefixes their names have. For each feed of such a prefix Run
// makes one batch of what happened since the last one, and wakes the watches, which send the same
// encoded frame:
//
//	Applied ─ touched prefixes ► Run ─ batches ► feed ─ wakes ► Watch.Send ─ frames ► stream
//	   └──────── ring of events ──┘                                  │
//	                    └────────── what is not kept ────────────────┘
//
// # Invariants
//
//	Y1  All events of an index are in one frame, and each is sent once, in order, or the watch
//	    ends with COMPACTED.
//	Y2  No index is sent before the events up to it that are for the watch.
//	Y3  What an entry costs does not depend on watches of other prefixes, nor, under the state
//	    machine's lock, on how many watches a prefix has.
//	Y4  The times at which a watch is sent its index do not depend on events hidden from it.
//
// The files: history.go, the ring and the times; feed.go, prefixes, feeds and Run; watch.go, a
// watch.
package history
