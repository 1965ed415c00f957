// Package fair is a queue that is fair between identities, and between the sessions of each
// identity.
//
//	var q fair.Queue[request]
//	q.Put(fair.From{Identity: "alice", Session: 57}, fair.Item[request]{Value: r, Cost: 600})
//	for q.Len(fair.Normal) > limit {
//		refuse(q.Evict(fair.Normal)) // the last one of the session with the highest cost
//	}
//	for item := q.Oldest(); item != nil && item.Value.since.Before(late); item = q.Oldest() {
//		refuse(q.TakeOldest())
//	}
//	for item := q.Next(fair.Normal); item != nil; item = q.Next(fair.Normal) {
//		serve(q.Take(fair.Normal))
//	}
//
// # Model
//
// Items of one session leave in the order in which they came. The class of a session is that of its
// first item. The callers of Next and Take choose the class to serve, so an urgent item overtakes
// only other sessions.
//
// Within each class the queue runs deficit round robin (Shreedhar and Varghese, 1995) over the
// identities, and within each identity over its sessions. Each round adds a quantum to the credit
// of each of them. An item leaves when the credits of its session and of its identity cover its
// cost. A session or an identity without items loses its credit. So the queue serves all of them
// for the same cost, not the same number of items: sixty items of cost 600 leave for each one of 36
// 000. And an item of an idle session waits for at most one quantum of each other session, however
// many items these have.
//
// # Invariants
//
//	F1  Each item that is put is removed once.
//	F2  Take serves items of one session in the order of Put. TakeOldest removes the oldest of all
//	    normal items, and Evict the latest of a class in its session.
//	F3  Evict takes an item of the identity with the highest total cost in its class, and of its
//	    session with the highest.
//	F4  Between two items of a session that waits all the time, every other session of the class
//	    that does is served for as much, give or take a quantum and the largest item; so is every
//	    other identity.
//	F5  Only a session or an identity with something waiting takes memory.
//
// Put, Take and Evict take amortized logarithmic time in the number of sessions. A Queue is not
// safe for concurrent use.
package fair
