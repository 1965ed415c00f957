// Package fsm is the replicated state machine: the rules of locking. It is one function,
//
//	m := fsm.New()
//	applied, err := m.Apply(term, entry) // results for the callers, events for everybody
//
// and everything that function needs. There is no clock, randomness, goroutine, I/O or setting of a
// node, and no map iteration that reaches an output. The same entries give the same state, results
// and events on every node, however they are grouped and wherever a snapshot was taken between
// them.
//
// # One entry
//
// An [Entry] is what the leader appends to the replicated log: the state machine version it was
// encoded for, a reading of the leader's clock, the sessions to renew, and a batch of commands.
// Applying it takes four steps, advance then act (machine.go):
//
//  1. Advance. If the reading's epoch is the machine's present epoch, time becomes max(time,
//     reading). Otherwise time stands still. An epoch begins with its LeaderStart and ends with its
//     term; package clock has the proof that needs both.
//  2. Renew. Every session among the renewals, and every session that one of its own commands names
//     (OpenSession, Attach with the right hash, Acquire, Drop, Downgrade, CloseSession,
//     WithdrawSession), gets the deadline time + ttl. So a session that is renewed in the very
//     entry in which its deadline passes stays alive. (DropUnrenewed is no renewal: it is the Drop
//     of a client whose right to hold locks was withdrawn.)
//  3. Expire. What is due at the new time is removed, in the order (deadline, kind, id): expired
//     sessions, waits that timed out, lock delays and maximum holds that passed. First everything
//     is removed, then the locks that became free are granted, once (grant.go). After
//     [ExpirationsMax] removals the rest stays alive until the next entry; late expiration only
//     makes leases longer.
//  4. Act. The commands are executed in order. Each of them, too, removes first and grants once.
//
// The machine counts its own index: each entry takes one index for steps 1 to 3, whether or not
// they change anything, then each command takes one, including refused ones. An entry that was
// encoded for another version takes one index and changes nothing, except that its term has begun.
// (Once in a history the index jumps: the first LeaderStart raises it to the token base.) So the
// index is a function of state and entry, and nodes cannot disagree about it. The index of the step
// or command that made a grant is the token of the grant.
//
// An entry that cannot be decoded stops the node: another binary may know it, and have acknowledged
// what it asks for. Apply changes nothing and returns a [FormatError], and the process must end.
// [Checker] finds such an entry before it is in a log.
//
// # Tickets
//
// A client's session numbers its acquisitions 1, 2, 3, …; each is a ticket with these states:
//
//	waiting → granted → ended
//
// A command moves a ticket forward or leaves it alone. Together with a memory of ended tickets,
// this makes each ticket act exactly once, whatever is duplicated, delayed or reordered. A live
// ticket answers a repeated Acquire with its state. An ended ticket is kept, with reason and token,
// while its number is above the session's acknowledged-through number; at or below that number only
// live tickets are known and all others count as ended. The number is the client's promise, carried
// by its commands, to send no further Acquire for tickets up to it. Ticket numbers above
// acknowledged-through + [TicketWindow] are refused. So a session is remembered with its live
// tickets, at most TicketWindow ended ones, and the delays of locks that it lost. (If the number
// meant "all tickets below have ended", one lock held for a week would hold it back.)
//
// A ticket that a quota refuses is not remembered one by one (quota.go): its session has a
// refused-through number, and an unknown ticket up to it counts as refused.
//
// A Drop of an unknown ticket ends it: a late Acquire then finds a ticket that has ended.
//
// A session that its owner closed, or that held a lock, is remembered, too, as long as there is
// room, and its secret opens no other one (ended.go).
//
// # The queue rule
//
// A lock is a name with holders and a queue, and exists only while it has a holder, a waiter or a
// delay. A waiting ticket is granted when in every queue that it is in
//
//	it is first, the lock has no delay, and its request is compatible with the holders.
//
// Shared is compatible with shared, exclusive with nothing, and permits as long as their sum stays
// within the limit. There is no overtaking: a reader behind a waiting writer waits, and an Acquire
// with Wait 0 (a TryLock) that would have to overtake is refused. Enqueueing is one command, so all
// queues have the same order, the oldest waiter is first in all of its queues, no waiter starves,
// and acquisitions of several locks never deadlock among themselves. The price is that a wide
// request makes free locks unavailable to those behind it; a refusal therefore names the waiters
// ahead and not only the holders.
//
// Two grantable tickets are never in each other's way, so the set of tickets that a step grants
// does not depend on the order in which they are found. Their events are emitted in the order in
// which they were enqueued.
//
// # Deadlock
//
// Locks that are acquired one after the other can deadlock. A ticket may name an owner, a logical
// thread within its session. An owner has at most one waiting ticket. When an owner that holds
// something would begin to wait, the machine searches from the new ticket: a waiting ticket leads
// to the holders that it is not compatible with and, in each queue, to the ticket just ahead; a
// granted ticket with an owner leads to that owner's waiting ticket. If the search reaches a ticket
// that the new ticket's owner holds, the acquisition is refused and the cycle is returned
// (deadlock.go). Locks are not reentrant: a request for a lock that the owner holds is the shortest
// cycle. A wait with a limit counts as any other, although a cycle through it would end by itself.
//
// A holder of permits is an edge only if the waiter is not compatible with it alone. So a deadlock
// that needs several permit holders together is not detected, and no request is refused because of
// holders that others could release. A search that is too long goes backwards from what the owner
// holds instead. All searches of one entry have [SearchMax] steps, and an identity at most half of
// what the others left. Then the ticket is admitted; a limited wait ends a deadlock that the search
// missed.
//
// # Delay, maximum hold, restore
//
// When a grant ends without a request of its holder (expiration, disconnect, forced release,
// maximum hold), the lock is granted to no one for the session's lock delay. This protects
// resources that check no tokens. A drop and a clean close have no delay. A maximum hold ends a
// grant even while its session is alive.
//
// A restored backup starts a new history (rewrite.go): the index jumps above everything that was
// ever issued, every session ends, and no lock is granted during the restore hold-off, until the
// longest lease and delay of the old cluster have passed in cluster time, unless the operator knows
// a shorter time.
//
// The longest ttl is a setting in the state, since replicas must agree on it. A living session
// keeps its ttl when the setting changes. A restore does not know which leases were given after the
// backup, nor whether the setting was raised again. So the hold-off follows the highest value that
// the setting ever had; the state remembers it, and passes it on to the histories that begin with
// it. A backup from before the setting was raised for the first time can't know of that: its
// restore must be given a longer hold-off.
//
// The waiters that a command unblocks are granted in the same step, however many they are: a writer
// that is followed by two hundred thousand readers takes every node about a second. Only expiration
// is bounded.
//
// # Quotas
//
// Quotas limit the sessions, the tickets and their approximate bytes, of all clients together and
// of each identity. They are a setting in the state like the longest ttl ([SetQuotas]). The usage
// follows from the records, and a restore counts it again. Only a new session and a new ticket can
// be refused, so a full cluster can always be emptied. See quota.go.
//
// # State machine version
//
// The state has a state machine version, and an entry has the version that it was encoded for. A
// binary knows a range of versions ([SupportedVersions]). From release 0.1.0 on each change of
// meaning, or of a constant in limits.go, is a new version with a branch that names it; until then
// the format (format.go) separates binaries, which does not see a changed rule. An entry of another
// version changes nothing and is answered "not done, encode again". Upgrade raises the version by
// one, and it never decreases. A binary that meets a version beyond its range stops before it
// applies anything ([VersionError]).
//
// # Representation
//
// Canonical records (sessions, tickets, delays, members, ended sessions, a few numbers) are what a
// snapshot holds and the digest covers. They are kept in ordered copy-on-write trees: no order
// depends on a map, and [Machine.Freeze] takes a snapshot in constant time whatever the number of
// locks. Everything else (locks, queues, the schedule of deadlines, owners) is derived from them,
// is changed in place, and is rebuilt by [Restore]. Queues are linked lists through the tickets'
// slots, so leaving one from the middle takes constant time.
//
// The digest is the checksum of a snapshot: a function of the state alone, so equal states have
// equal digests. Another goroutine may compute that of a frozen state.
//
// A Machine has one owner, which serializes calls; queries (query.go), Check and Digest may run
// concurrently with each other. Queries return copies and never a pointer into the state. A frozen
// snapshot may be written by another goroutine.
//
// # Invariants
//
// [Machine.Check] tests these (M12 is tested by TestDigestCoversEveryField and its neighbours), by
// number, after every step in tests and after a restore in production:
//
//	M1  A lock has either at most one exclusive holder and no other, or only shared holders, or
//	    permits whose sum is within the limit.
//	M2  No waiting ticket could be granted: one that is first in all its queues, undelayed and
//	    compatible has been granted in the same step.
//	M3  A ticket was enqueued at an index of the past; a granted one's token is that index or a
//	    later one of the past.
//	M4  Every ticket belongs to a live session; each ticket, and nothing else, is in the slots
//	    that its items name.
//	M5  Queues and holders are ordered by the index at which they were enqueued.
//	M6  A lock exists exactly while it has a holder, a waiter or a delay; a delay is scheduled to
//	    end.
//	M7  A lock's counters equal its lists, and all its holders and waiters are of one kind.
//	M8  An owner has at most one waiting ticket, and the index of owners agrees with the tickets,
//	    in the order of their numbers.
//	M9  A session's acknowledged-through number, window and number of live tickets are respected;
//	    ended tickets at or below that number are forgotten.
//	M10 The schedule has exactly the deadlines of sessions, waits, delays and holds, and nothing
//	    due later than scheduled.
//	M11 Items, sessions and members are within their limits; no session's ttl is above the highest
//	    that the longest ttl ever was.
//	M12 A snapshot, and so the digest, has every field that is not derived.
//	M13 A member was announced at an index of the past, at which no other was; if its incarnation
//	    ever changed, then at a time of the past.
//	M14 A session is kept under its id, which is not 0, and found by its secret, which no other
//	    has. It never ends before its opening + ttl.
//	M15 The counted usage is the sum over the records, for each identity and in total.
//	M16 An ended session that is remembered is not alive, and found by its secret, which no other
//	    has. Those of an identity are counted in the order of their ends.
//
// # Files
//
//	machine.go                          Apply, in the order of One entry
//	command.go, result.go               what goes in and comes out; limits.go: what is refused
//	ticket.go, lock.go, grant.go        acquisitions, queues, and the one place where a token is
//	                                    made
//	quota.go                            quotas, and the usage of clients
//	blockers.go, deadlock.go            why a ticket waits, and whether it would wait for itself
//	session.go, operator.go, expire.go  sessions; what operators and nodes command; what time ends
//	ended.go                            what is remembered of sessions that ended
//	query.go                            reading the state
//	codec.go, decode.go                 entries as bytes (by package fsm/record)
//	format.go                           what two binaries must have in common
//	snapshot.go, restore.go             the state as bytes; snapshot.go: the digest that replicas
//	                                    compare
//	rewrite.go                          a backup as a new history
//	check.go                            the invariants
package fsm
