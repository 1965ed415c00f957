// Package check checks a recorded history of locks against the promises of the service. It runs nothing and
// reads no clock that decides anything: the program that ran a cluster, in virtual time or as processes on one
// machine, records the calls of clients, their answers, when clients considered themselves holders, and the
// faults, and passes the history in memory or as lines of JSON.
//
//	var h check.History
//	err := h.Read(file)                       // once for each process that recorded
//	report := check.Check(&h)
//	if !report.OK() { fmt.Print(report) }     // violations in words, and why the run is invalid
//	check.Visualize(&h, "a", page) // porcupine's picture of one lock
//
// A recorder writes json.NewEncoder(file).Encode(check.Record{Op: &op}), or fills a [History] and
// lets it write itself.
//
// # The history
//
// A line of JSON is a [Record]: an object with one field, whose name is the kind of the record. Of two records
// of one thing (an op with one client and id, a hold with one client, ticket and beginning, a session
// with one number, the plan) the later counts: a client that may be killed writes a line when it
// begins (outcome unknown, no return) and another when it is through. A last line without its end is
// what a kill leaves and is skipped; elsewhere a line that can't be read is an error. All moments
// are nanoseconds of one monotonic clock that all processes share, and above 0.
//
//	plan     what the run was to be, and when the faults had ended; one
//	op       a call: its client, kind, items and ticket, from when to when, the outcome and the
//	         answer. call is taken before it is made, return after it came back. ok: it was done.
//	         refused: it was not and never will be (a try, a wait that was over, a deadlock).
//	         unknown: everything else, also a wait that the caller gave up. token: the grant's; in a
//	         check or a force, the one that was named. queued: when its client first learned that it waits,
//	         of the ticket that was granted in the end. index, term, time: the stamp of a read.
//	hold     when a client considered itself the holder: from when Lock had returned until just before Unlock was called
//	         (unlocked), or until it saw Lost closed (lost, and the reason), or with no end
//	session  a lease: its client, its ttl, whether it is released on disconnect, and when its client
//	         died (a client that died before it had a session is recorded with number 0): nothing is
//	         expected of the calls and holds of that name any more, so a successor has another one.
//	         A client that is paused beyond the bound may be recorded as dead, for C7
//	renewal  a transmission of a session that was confirmed: sent, and confirmed
//	write    what a fenced resource decided, recorded by the resource
//	fault    its kind, its target, from when to when. excuses_client: the client was paused, or its clock
//	         was beyond what is promised, so its holds prove nothing meanwhile
//	stall    cluster time that did not pass: at a change of leader its length and 1 s, at a
//	         stalled leader what was cut off. held: time did pass, but nothing was committed
//	event    an effect of the log: as a node applied it, or a watch reported it. at may be late, never
//	         early; several may record the same one, and must agree. At one index, what ends comes
//	         before what is granted. A session's end is an event without a ticket; one that is known only
//	         because a list does not show the session any more has no index
//	node_state  a node's index, with its term, cluster time and digest
//	idle_count  what a process counts at rest, before the load and after: sessions, locks, goroutines, …
//
// # The checks
//
// Each check counts how much it looked at; a plan names the checks that must have found something to look
// at, otherwise the run is invalid.
//
//	C1  Every lock's answers have an order (ops; events and holds where an answer is missing): some
//	    order of all grants, releases, downgrades, checks and gets of a lock, each within its call,
//	    is one that a lock could have lived: holders fit, tokens rise, reads show the holders.
//	    Porcupine judges. Tokens say the order of the grants, which bounds the moment of each; so the
//	    history falls into parts at moments when nothing is under way, each with one state before it.
//	    A grant without a request to end it, or that may have ended unseen, ends where that permits
//	    most. Not seen: whether a refusal was right; what unknown calls did without an audit (they
//	    are counted as unresolved).
//	C2  Exclusion as clients see it (holds): no two clients hold at one moment what excludes each
//	    other, and permits stay within their limit. Holds are excused during and 200 ms after a fault that
//	    excuses the client, after an operator asked for an end, and in sessions released on disconnect.
//	C3  Exclusion at the resource (writes, ops): no accepted token is below an accepted exclusive one,
//	    or was never granted; none is refused without cause. Nothing is excused.
//	C4  Tokens and stamps rise (ops): what is called after an answer takes effect at a higher index
//	    than that answer had, over all locks and reads. No token is granted twice, unless to
//	    sharers, and none is from an earlier run. Not seen: order within calls that overlap.
//	C5  First come, first served (ops with queued): a call that was known to wait before another began
//	    is granted no later. Not seen: the order of calls that began at once.
//	C6  No lease ends early (sessions, renewals; events, holds): not before the ttl is over from the
//	    latest confirmed renewal; and no client gives up a lock while it has such a confirmation, but for
//	    twice its margin. It looks at the leases that expired, at those that lived by their renewals only
//	    (with a complete audit), and at the locks that were given up.
//	C7  Sessions of dead clients expire in time (sessions, stalls, events): within their ttl,
//	    the stalls since, and the plan's slack; if they are due while nothing is committed, 1 s after
//	    that. Not seen without events of sessions.
//	C8  A loss is reported before the next grant (holds, events): no grant is seen while another client
//	    still holds an earlier one that excludes it. Excused as in C2. Late events hide.
//	C9  Lost is final (holds, ops; events): what was reported lost is not held again, and its release
//	    is not answered as if it were; with a complete audit, the cluster ends it in time.
//	C10 Exactly once (ops, events): a ticket is granted once, ends once, in this order and with that token, and is shown
//	    by no read that began after its release was answered, nor if it was refused. Needs tickets.
//	C11 Done is done, not done is not (ops, holds, events): a grant that was answered is in the log,
//	    with its token; what was refused is neither there nor held; every release that was
//	    answered is there, and every end of a session; nothing is granted without a request.
//	C12 Every call returns (ops, a plan with drain): after the healing every call of a client that lives
//	    returns in time.
//	C13 Reads show the state of their stamp (ops with index, complete audit).
//	C14 The cluster's clock is never fast (ops with time, node states): it never falls, and between two
//	    readings it counts no more than passed from the first one's call to the second one's answer,
//	    times the plan's rate (C6 and C7 reckon with it too). Not seen: a clock that is too slow; C7
//	    and C12 notice.
//	C15 Equal digests at equal indexes (node states).
//	C16 The log excludes (events): grants and ends in order of index keep every lock within its
//	    rules, tokens are the indexes of their grants and rise, and a session ends once, with its
//	    tickets, and gets nothing after it.
//	C17 Nothing grew (idle counts): no count at rest is greater after the load.
//
// # Not covered
//
// Whether a refusal was right, that of a try on a free lock or of a deadlock; that waits, lock delays
// and maximum holds end when they should; the order and completeness of watches; what a restore
// brings back: its new history is a run of its own, with Above.
//
// # Invalid runs
//
// A run whose load was too low, in which a fault that was asked for did not happen, in which no lock
// was granted after the healing or the last call of a client did not succeed, whose record is incomplete,
// or in which the search of C1 did not come to an end, proves nothing. It fails as a violation does,
// and is reported as such: [Report.Invalid].
//
// # Promises
//
//	P1  A violation is reported in a sentence with the names, tokens and moments that show it. Moments
//	    count from the plan's begin.
//	P2  A history that a correct service can produce has no violation, whatever was unknown, paused
//	    or late in it; the tests check this with generated histories of such a service.
//	P3  Nothing is dropped in silence: what could not be judged makes the run invalid, or is counted.
//	P4  A million calls are checked in less than a minute on one core, in less than 2 GB.
package check
