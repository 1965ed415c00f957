// Package fair is a queue that gives each identity, and each session of an identity, its share.
//
//	var q fair.Queue[request]
//	q.Put(fair.From{Identity: "alice", Session: 57}, fair.Item[request]{Value: r, Cost: 600, Since: now})
//	for q.Len() > most {
//		refuse(q.Evict()) // the last of the session that waits with most
//	}
//	for item := q.Next(fair.Normal, now); item != nil; item = q.Next(fair.Normal, now) {
//		serve(q.Take(fair.Normal, now))
//	}
//
// # Model
//
// Items of one session leave in the order in which they came. The class of a session is that of its first item: so the
// callers of Next and Take decide which sessions go first, those with something urgent or the others, and an urgent item
// overtakes only other sessions.
//
// In each class the identities take turns, and within each identity its sessions do: deficit round robin (Shreedhar and
// Varghese, 1995). A turn adds a quantum to the credit, and an item leaves when the credits of its session and of its
// identity pay its cost. What has nothing left to send keeps no credit. So shares are equal in cost, not in number: sixty
// items of 600 leave for each one of 36 000. And what a session sends waits for one turn of each other at most, however
// much the others sent before.
//
// # Invariants
//
//	F1  What is put is taken or evicted, once.
//	F2  Items of one session are taken in the order of Put, and evicted from the end.
//	F3  What is evicted is of the session that waits with the highest cost, among those of the identity that does.
//	F4  Between two items of a session that waits all the time, every other session of the class that does is served for
//	    as much, give or take a quantum and the largest item; so is every other identity.
//	F5  A session or an identity with nothing waiting takes no memory.
//
// Put, Take and Evict take amortised time that grows with the logarithm of the number of sessions. A Queue is not safe for
// concurrent use.
package fair
