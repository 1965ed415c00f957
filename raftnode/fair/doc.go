// Package fair is a queue that is fair between identities, and between the sessions of each identity.
//
//	var q fair.Queue[request]
//	q.Put(fair.From{Identity: "alice", Session: 57}, fair.Item[request]{Value: r, Cost: 600, Since: now})
//	for q.Len() > limit {
//		refuse(q.Evict()) // the last item of the session with the highest cost
//	}
//	for item := q.Next(fair.Normal, now); item != nil; item = q.Next(fair.Normal, now) {
//		serve(q.Take(fair.Normal, now))
//	}
//
// # Model
//
// Items of one session leave in the order in which they came. The class of a session is that of its first item. The callers of
// Next and Take choose the class to serve, so an urgent item overtakes only other sessions.
//
// Within each class the queue runs deficit round robin (Shreedhar and Varghese, 1995) over the identities, and within each
// identity over its sessions. A turn adds a quantum to the credit. An item leaves when the credits of its session and of its
// identity cover its cost. A session or an identity without items loses its credit. So shares are equal in cost, not in number:
// sixty items of cost 600 leave for each one of 36 000. And an item of an idle session waits for at most one turn of each
// other, however many items these have.
//
// # Invariants
//
//	F1  Each item that is put is taken or evicted, once.
//	F2  Items of one session are taken in the order of Put, and evicted from the end.
//	F3  Evict takes an item of the identity with the highest total cost, and of its session with the highest.
//	F4  Between two items of a session that waits all the time, every other session of the class that does is served for
//	    as much, give or take a quantum and the largest item; so is every other identity.
//	F5  A session or an identity with nothing waiting takes no memory.
//
// Put, Take and Evict take amortized logarithmic time in the number of sessions. A Queue is not safe for concurrent use.
package fair
