// Package push delivers what the state machine did: changes of tickets to the streams of their
// sessions, in the order of the log, results to the calls that wait for a ticket, and queue
// positions to waiters.
//
//	hub := push.NewHub(…)        // Applied, Restored and SetLeading are called by the node
//	queue, err := hub.Claim(…)   // when the stream's Attach was applied
//	for range queue.Wake() {
//		frame, last := queue.Take()
//		…                        // send it
//		queue.Sent()
//	}
//
// # Invariants
//
//	H1  A session has at most one stream here, that of its latest attachment: it becomes so at the
//	    EvAttached event, between the events before and those after it.
//	H2  On one stream every change of its session is sent, in the order of the log, or the stream
//	    ends.
//	H3  The hub waits for no reader: it appends to bounded queues, and ends the stream of a full
//	    one.
//	H4  Sessions are attached here only while this node leads.
package push
