// Package clock has the kinds of time of a system in which no wall clock decides
// anything. It is the only access to the machine's clocks: code that needs to know
// how much time has passed gets a value of one of the types here.
//
//	l := clock.StartLeader(clock.System(), epoch, base)        // a leader
//	now = clock.Advance(now, epochInForce, l.Read())           // every node, for each entry
//
//	d := clock.NewLocalDeadline(ttl)                           // a client
//	d.Confirm(clock.Confirmation{Sent: sent, At: clusterTime}) // for each answer to a renewal
//	d.Valid(source.Now())
//
// # Three times
//
// Cluster time ([Time]) is how long the cluster has had a leader. Leases, waits,
// delays and maximum holds are measured in it. It is part of the replicated
// state, so it is the same on every node at the same place of the log, and it
// survives every leader. It stands still while there is no leader, and it never
// jumps.
//
// Elapsed time ([Instant]) is what this machine's own clocks show: two clocks
// read together, because one of them may be bent, and stands while the machine
// sleeps. A leader adds its elapsed time to cluster time ([Leader]); a client
// measures with it how long it may consider its lease valid without an answer
// ([LocalDeadline]).
//
// Wall time is what a calendar shows. It can be set, by people and by programs,
// forwards and back, and two machines never agree on it. It may be printed for
// people. Nothing here reads it, and no lease, grant or order depends on it. If a time
// service makes it run faster or slower until it is right, instead of setting it, the
// monotonic clock runs with it: the raw clock is there because of that.
//
// Beside these a [Stamp], the pair (term, index), orders everything that ever
// happened in a cluster. It is not a time: it says before and after, not how long.
//
// # How cluster time moves
//
// An epoch is one leadership of one node. It begins with an entry in the log,
// its LeaderStart, and is named by that entry's index. When its own LeaderStart
// has been applied, the leader starts a clock ([StartLeader]) from the time that
// the machine has at that point. At the head of every entry the leader writes a
// [Reading] of that clock, and every node applies it by one rule ([Advance]): a
// reading counts only while its own epoch is in force, and then time becomes the
// greater of the two; otherwise time stands.
//
// # Invariants
//
// Of a leader's clock:
//
//	C1  Readings never fall. Between any two of them they grow by no more than
//	    either of the leader's clocks did, and one reading adds at most StepMax.
//	C2  A reading is not older than the moment of reading: all that has passed by
//	    both clocks, up to StepMax, is in it. What is over is counted by Discarded.
//
// Of cluster time, given the duties below:
//
//	C3  It never falls.
//	C4  Let an entry E be stamped at the real moment p, and let T be the time
//	    after it. When cluster time has come to T+x, by the reading of an entry
//	    stamped at q, then q ≥ p+x.
//
// Of a client's arithmetic:
//
//	C5  What is Reached stays Reached as long as neither clock goes back, and what
//	    is left Until a deadline is positive exactly when it is not Reached.
//	C6  Confirmation.Local(D) is reached no later than cluster time reaches D, if each
//	    machine has a clock that runs at its own rate, and those rates are less than
//	    5 % apart. Its other clock may do what it likes.
//	C7  LocalDeadline.Until never moves back, on either clock, in whatever order answers
//	    arrive.
//
// Of all arithmetic:
//
//	C8  It stops at the ends of the scale. No sum or difference wraps.
//
// # Duties of the callers
//
// C3 and C4 hold only if
//
//	D1  an entry is stamped last, when every renewal and command is in it, by the
//	    one goroutine that hands entries to Raft;
//	D2  the epochs of one process follow each other: the clock of the next is
//	    started when the one before has stopped for good (nothing will be stamped
//	    by it any more), after the next one's own LeaderStart was applied, from
//	    the time the machine had then;
//	D3  an epoch is in force from its LeaderStart to the next LeaderStart *or to
//	    the first entry of another term*, whichever comes first;
//
// and C6 is of use only if
//
//	D4  a renewal is answered when its entry was applied, not before, and the
//	    lease then ends at the time after that entry plus ttl, or later;
//	D5  the answer echoes the Instant sent in the very transmission whose bytes
//	    were in that entry;
//	D6  the client looks at its clocks every 100 ms, at every call, and at a
//	    deadline. A timer is not enough: timers stand still while the machine is
//	    suspended, and are late by up to a tenth while its monotonic clock is
//	    slowed. So a timer is set to nine tenths ([Span.Timer]) and, if it comes too
//	    early, once more, until no more than a millisecond is left.
//
// # Why no lease ends early
//
// The proof of C4, by induction over the log. Write T(E) for the time after entry
// E, and p(E) for the real moment at which E was stamped (for a LeaderStart, at
// which it was proposed). E is in no log before p(E). Take E, and a later entry
// Q that raised time. Then Q carries a reading that counted, of an epoch with
// LeaderStart S. To show: T(Q) − T(E) ≤ p(Q) − p(E).
//
// S after E. The epoch's clock was started after S was applied, hence after E
// was in the log, hence after p(E). It was started from T(S). If time was not
// raised between E and S, then T(S) = T(E), and by C1 the clock has added no more
// than the real time since its start, which is less than p(Q) − p(E). If it was,
// let R be the last entry up to S to raise it. By induction T(R) − T(E) ≤
// p(R) − p(E); and R was applied, so it had been stamped, before the clock
// started, which then added no more than p(Q) − p(R). The two add up.
//
// S before E, or S is E. The epoch is still in force at Q, so by D3 Q and E have
// the term of S. A term has one leader, so one process put all three into the
// log. E was stamped by that process, in this epoch or in an earlier one (a
// later one would have its LeaderStart between S and E, and S would no longer be
// in force), or E is S itself.
//
//   - In this epoch: both readings are of one clock. E's reading counted, so
//     T(E) is at least what E's reading says. If Q was stamped after E, C1 gives
//     the bound. If before (entries may overtake each other on their way), Q's
//     reading is no greater than E's, and Q raised nothing.
//   - In an earlier epoch, or E is S: by D2 p(E) lies before the start of this
//     epoch's clock, which started from T(S) ≤ T(E). By C1 it has added no more
//     than p(Q) − p(E). ∎
//
// It uses of a leader's clocks that one of the two runs at its own rate. Which one, and
// what the other shows, does not matter: the lesser of two steps is no more than the
// right one. p(E) is the moment that the right one shows in the reading of E. It lies
// within [Leader.Read]: after the last renewal came in, and before the entry goes to
// Raft.
//
// So a renewal that a client sent at s and that was heard in an entry stamped at
// p ≥ s keeps its session until T + ttl of cluster time, and no node can reach
// that before s + ttl of real time: neither a new leader that starts from what the
// old one left, nor one that was restored from a snapshot, nor one that was paused
// or whose disk hung. All these make time slow. What remains is that
// clocks run at slightly different *rates*; a client allows for that (below).
//
// Each part is needed. If a leader went by its monotonic clock alone, or by the
// lesser of what both its clocks show altogether, this could happen:
//
//	  0 s  the wall clock of the leader's machine is ahead: the monotonic clock is
//	       slowed by a twelfth
//	 96 s  that was too much: the monotonic clock, which shows 88 s, is hurried by a
//	       twelfth. At the same time a renewal of a session with ttl 60 s is stamped
//	151 s  the monotonic clock shows 148 s, 60 s more, and the raw one 151 s. So by the
//	       lesser of both the lease is over, when its client believes in it for 2 s
//	       more. Of the steps since 96 s the raw ones were the lesser: by them it is
//	       over at 156 s
//
// Without D1, or if a reading showed the latest tick and not the present (C2), a
// renewal is dated before it was sent, and its lease ends early by the difference. If
// a reading counted in any epoch, one that waited while leadership was lost and
// regained would land on top of the next epoch's readings, and time would leap. And
// without the second half of D3 this can happen (n1 and n2 are nodes, the numbers are
// terms):
//
//	term 1  n1 leads; its epoch A is open
//	term 2  n2 leads; its epoch B is open; at 0 s an entry of B is applied, time 0 s;
//	        at 10 s n2 stamps F with (B, 10 s), which gets stuck on its way into Raft
//	        at 10 s n1, which was paused and still thinks it leads, stamps E with
//	        (A, …), and in it a renewal sent just now, of a session with ttl 5 s
//	term 3  n1 leads again; E goes into the log. Its reading is of an epoch that is
//	        over: time stands at 0 s, and the lease ends at 5 s
//	term 4  n2 leads again before n1 could open another epoch; F goes into the log.
//	        B is still the latest LeaderStart. If F counts, time leaps to 10 s and
//	        the renewal has lasted for no time at all.
//
// The term of E put an end to B, so F does not count.
//
// # What a client may consider valid
//
// An answer that went through the log is a [Confirmation]: what was sent at s was in an
// entry stamped at some p ≥ s, after which the time was T. By C4 cluster time
// comes to D no earlier than D − T after p, so no earlier than D − T after s. That
// is measured by leaders' clocks; if the client's runs slower than theirs by the
// factor 1 − r, it shows (1 − r)(D − T) when the time has come. [Confirmation.Local] stops
// at nineteen twentieths, and at least 200 ms before, hence C6. It reads both of
// the machine's clocks and goes by the one that says that more has passed: that is
// no less than what the right one says.
//
// Three things look like confirmations and are not. A pushed message says nothing about
// when the cluster last heard of the client. The moment at which an answer was
// *received* may be any time after the entry. And if a request was sent twice,
// the answer to the first must not be dated by the second (hence D5): it confirms
// only the first.
//
// # Which clock is good for what
//
//	                   monotonic                    raw
//	Linux              CLOCK_MONOTONIC              CLOCK_MONOTONIC_RAW + time asleep
//	  bent             by up to 10 % (adjtimex)     never
//	  suspend          it stands                    it runs
//	macOS              mach_absolute_time           mach_continuous_time
//	  bent             never                        never
//	  suspend          it stands                    it runs
//	others             the Go runtime's             the same one
//	  bent             as the system does it        the same
//	  suspend          on most it stands            the same
//
// The 5 % are for crystals, which are off by a few hundredths of a per cent at worst.
// What a time service does is no part of it: chronyd slows or hurries CLOCK_MONOTONIC
// and CLOCK_BOOTTIME by up to 8.33 % unless it is told otherwise, for twelve minutes
// after a machine was paused for one. A leader whose monotonic clock is slowed makes
// leases longer by as much, one that was suspended counts nothing of it, and a client
// whose clock is hurried gives up earlier: all three are safe. If the raw clock is the
// wrong one, because the kernel mistook its rate at boot, the monotonic one is left,
// which the time service corrects.
//
// Not covered, by any clock: a client machine whose clocks *all* stop, as when a
// hypervisor pauses it; a process stopped between looking at its clock and acting
// on what it saw; rates more than 5 % apart; and on some systems suspend and bent
// clocks (see [System]). There the number that each grant carries protects, if the
// storage checks it.
//
// # Files
//
//	time.go                          cluster time, a position in the log, and durations
//	leader.go                        the leader's clock, and what an entry carries of it
//	instant.go, system_*.go          the clocks of this machine
//	localdeadline.go                 until when a client considers its lease valid
//	runtime.go                       the clock for virtual time
package clock
