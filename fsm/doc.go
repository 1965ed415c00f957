// Package fsm holds the rules of locking. It is one function,
//
//	Machine.Apply(term, entry) → results, events
//
// and everything that function needs. There is no clock here, no randomness, no goroutine, no I/O,
// no flag of a node and no map iteration that reaches an output: the same entries give the same
// state, results and events on every node, however they are grouped and wherever a snapshot was
// taken between them. That is what lets three nodes hold one lock.
//
// # One entry
//
// An [Entry] is what the leader puts into the replicated log: the version it was encoded for, a
// reading of the leader's clock, the sessions that renewed, and a batch of commands. Applying it is
// always the same four steps, advance then act (machine.go):
//
//  1. Advance. If the reading's epoch is the machine's present epoch, time becomes
//     max(time, reading). Otherwise time stands. An epoch begins with its LeaderStart and ends
//     with its term: package clock has the proof that needs both.
//  2. Hear. Every session among the renewals, and every session that a command of its own names
//     (OpenSession, Attach with the right hash, Acquire, Drop, Downgrade, CloseSession), gets
//     the deadline time + ttl. So who is heard in the very entry in which its deadline passes lives.
//  3. Expire. What is due at the new time is removed, in the order (deadline, kind, id): sessions
//     whose lease ended, waits that are overdue, delays that are over, holds that lasted their
//     maximum. First everything is removed, then what became free is granted, once (grant.go).
//     After [ExpirationsMax] removals the rest is left over: it still lives, and the next entry goes
//     on. Late expiration is only a longer lease.
//  4. Act. The commands, in order. Each of them, too, removes first and grants once.
//
// The machine counts its own index: each entry takes one index for steps 1 to 3, whether or not
// they change anything, then each command takes one, refused ones too. An entry that can't be
// decoded, or was encoded for another version, takes its one index and changes nothing else, but that
// its term has begun. (Once in a
// history the index jumps: the first LeaderStart lifts it to the token base.) So the index is a
// function of (state, entry), and nodes can't disagree about it. The index of the step
// or command that made a grant is the grant's token.
//
// # Tickets
//
// A client's session numbers its acquisitions 1, 2, 3, …; each is a ticket, and its states form a
// chain:
//
//	waiting → granted → gone
//
// Every command moves a ticket forward or leaves it alone. That, and remembering, makes each
// ticket act exactly once whatever is duplicated, delayed or reordered: a live ticket answers a
// repeated Acquire with its state; a gone one is kept, with the reason and the token, while its
// number is above the session's floor; at or below the floor only live tickets are known and
// everything else is gone. The floor f is the client's own word, carried by its commands: "I
// shall send no more Acquire for tickets ≤ f". Numbers above f + [TicketWindow] are refused, so of a
// session no more is remembered than its live tickets, TicketWindow gone ones, and the delays of
// locks that it lost. (A floor that meant
// "all below are over" would be pinned by one lock held for a week.)
//
// A Drop of a ticket that was never seen makes it gone: when the late Acquire comes, it finds the
// end of its own story.
//
// # The queue rule
//
// A lock is a name with holders and a queue, and exists only while it has a holder, a waiter or a
// delay. A waiting ticket is granted when in every queue it stands in
//
//	nobody is ahead of it, the lock is not delayed, and what it asks for fits beside the holders.
//
// Shared fits beside shared; exclusive beside nothing; permits while their sum stays within the
// limit. Nobody overtakes: a reader behind a waiting writer waits, and an Acquire with WaitFor 0
// (a TryLock) that would have to overtake is refused. Enqueueing is one command, so all queues
// have the same order, the oldest waiter is first in all of its queues, no waiter starves, and
// acquisitions of several locks never deadlock among themselves. The price: a wide request closes
// free locks to those behind it; a refusal therefore names who stands ahead, not only who holds.
//
// Two grantable tickets never share a queue position, so the set of tickets that a step grants
// does not depend on the order in which they are found; they are announced in the order in which
// they were enqueued.
//
// # Deadlock
//
// Locks that are taken one after the other can deadlock. A ticket may name an owner, a logical
// thread inside its session. An owner has at most one waiting ticket. When an owner that holds
// something would begin to wait, the machine searches from the new ticket: a waiting ticket leads
// to the holders it does not fit beside and, in each queue, to the ticket just ahead; a held one
// with an owner leads to that owner's waiting ticket. If the search comes back to a ticket that
// the new one's owner holds, the acquisition is refused with the links spelled out (deadlock.go).
// Locks are not reentrant: asking for what one holds is the shortest cycle. A wait with a limit
// counts as any other, though a cycle through it would end by itself.
//
// A holder of permits counts as in the way only if the waiter would not fit beside it alone. So a
// deadlock that needs several permit holders together is not seen, and nobody is refused for one
// that the others could undo. A search is cut off after [SearchMax] steps, those of one entry
// together after [SearchEntryMax], and the ticket is admitted; a timed wait ends what the search
// did not see.
//
// # Delay, maximum hold, restore
//
// When a grant ends without its holder having asked (expiry, disconnect, force, maximum hold), the
// lock stays closed for the session's lock delay: for resources that check no tokens. A drop and a
// clean close have no delay. A maximum hold ends a grant however alive its session is.
//
// A restored backup starts a new history (rewrite.go): the index jumps above everything that was
// ever issued, every session ends, and no lock is granted for a quiet period: until the longest lease
// and delay that anyone could still believe in have passed in cluster time, unless the operator knows
// a shorter one.
//
// What a command frees is granted in the same step, however many wait for it: a writer who leaves two
// hundred thousand readers behind takes every node about a second. Only expiration is bounded.
//
// # State machine version
//
// The state carries its state machine version and an entry the version it was encoded
// for. A binary knows a range of numbers ([SupportedVersions]); each change of meaning, or of a constant in
// limits.go, is a new number with a branch that names it. An entry of another version changes nothing
// and is answered "not done, encode again". SetVersion raises the number by one and it never falls.
// A binary that meets a version beyond its range stops before it applies anything ([VersionError]).
//
// # What is kept, and how
//
// Canonical records — sessions, tickets, delays, members, a few numbers — are what a snapshot
// holds and the digest covers. They live in ordered copy-on-write trees: order is never left to a
// map, and [Machine.Freeze] takes a snapshot in constant time whatever the number of locks.
// Everything else (locks, queues, the schedule of deadlines, owners) is derived from them, is
// changed in place, and is rebuilt by [Restore]. Queues are linked through the tickets' own
// places, so leaving one from the middle is not a walk.
//
// The digest is the sum of a hash of each canonical record, kept up to date record by record: a
// function of the state alone, so equal states have equal digests on any road that led to them.
//
// A Machine has one owner, who serialises calls; queries (query.go), Check and Digest may run beside
// each other. Queries return copies and never a pointer into the state. A frozen snapshot may be
// written from another goroutine.
//
// # Invariants
//
// [Machine.Check] tests these, by number, after every step in tests and after a restore in
// production:
//
//	M1  A lock has either at most one exclusive holder and nobody beside it, or only shared
//	    holders, or permits whose sum is within the limit.
//	M2  No waiting ticket could be granted: one that is first in all its queues, undelayed, and
//	    fits, has been granted in the same step.
//	M3  A ticket was born at an index of the past; a granted one's token is that index or a later
//	    one of the past.
//	M4  Every ticket belongs to a living session; each ticket, and nothing else, stands in the
//	    places its items name.
//	M5  Queues and holders are ordered by the index at which they were enqueued.
//	M6  A lock exists exactly while it has a holder, a waiter or a delay; what is delayed is
//	    scheduled to end.
//	M7  A lock's counters equal what its lists say, and all it serves are of one kind.
//	M8  An owner has at most one waiting ticket, and the owners' index says what the tickets say.
//	M9  A session's floor, window and number of live tickets hold; gone tickets at or below the
//	    floor are forgotten.
//	M10 The schedule has exactly the deadlines of sessions, waits, delays and holds, and nothing
//	    due later than it claims.
//	M11 Items, sessions, members and reports are within their limits.
//	M12 The digest kept equals the digest computed.
//	M13 A member was announced at an index of the past, at which no other was; if its incarnation
//	    ever changed, then at a time of the past.
//
// # Files
//
//	machine.go                          Apply, in the order of One entry
//	command.go, result.go, event.go     what goes in and comes out; validate.go, limits.go: what is refused
//	ticket.go, lock.go, grant.go        acquisitions, queues, and the one place where a token is made
//	blockers.go, deadlock.go            why a ticket waits, and whether it would wait for itself
//	session.go, operator.go, expire.go  sessions; what operators and nodes command; what time ends
//	query.go, position.go               reading the state
//	codec.go, decode.go, encoding.go    entries as bytes
//	snapshot.go, restore.go             the state as bytes; rewrite.go: a backup as a new history
//	check.go, digest.go                 the invariants, and the sum that replicas compare
package fsm
