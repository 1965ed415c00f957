// Package check judges a recorded history of locks by the promises of the service. It runs no
// cluster: a program that did so, in virtual time or as processes of one machine, has recorded the
// calls of clients, their answers, when clients considered themselves holders, and the faults.
//
//	var h check.History
//	err := h.Read(file)                       // once for each process that recorded
//	report := check.Check(&h)
//	if !report.OK() { fmt.Print(report) }     // violations in words, and why the run is invalid
//	check.Visualize(&h, "a", page)            // porcupine's picture of one lock
//
// # The history
//
// A line of JSON is a [Record] of one kind; history.go has the fields. All moments are nanoseconds
// of one monotonic clock that all processes share, and above 0. Of two records of one thing the
// later counts: a client that may be killed writes an op when the call begins (unknown, no return)
// and again when it returns. Outcomes are ok, refused (never done) and unknown (all else, also a
// wait that was given up). A dead client's successor has another name. A stall is cluster time that
// did not pass. At one index, ends come before grants. A last line without its end is skipped.
//
// # The checks
//
// Each counts what it looked at. The plan names the checks that must have found something.
//
//	C1   each lock's answers have an order that one lock permits (porcupine)
//	C2   exclusion as clients see it: no two hold at one moment what excludes each other
//	C3   exclusion at the resource: no accepted token is below an accepted exclusive one
//	C4   tokens and stamps rise with the order of calls; only sharers are granted one token
//	C5   first come, first served: who is known to wait before another call began is granted no
//	     later
//	C6   no lease ends before its ttl is over, counted from the latest confirmed renewal
//	C7   sessions of dead clients expire within ttl, stalls and the plan's slack
//	C8   a loss is reported before the next grant that it excludes
//	C9   lost is final: never held again, no release answered OK, and the cluster ends the grant
//	C10  a ticket is granted once and ends once; reads agree
//	C11  outcomes agree with the log: what was answered is in it, what was refused is not
//	C12  after the healing every call of a living client returns in time
//	C13  reads show the state of their stamp
//	C14  the cluster's clock never falls, and is never fast by more than the plan's rate
//	C15  equal digests at equal indexes
//	C16  in the log, too, locks exclude, tokens rise, and a session ends once with its tickets
//	C17  nothing that a process counts at rest is greater after the load
//
// Faults that excuse a client, operators' requests, and release on disconnect excuse holds in C2
// and C8, never in C3. Not covered: whether a refusal was right; whether waits, lock delays and
// maximum holds end when they should; calls that overlap, in C4 and C5; a clock that is slow, which
// C7 and C12 find; the order and completeness of watches. A restore begins a run of its own.
//
// A run is invalid, and fails, if its load was too low, a required fault did not happen, nothing
// was granted after the healing, a client's last call failed, its record is incomplete, or the
// search of C1 did not end.
//
// # Promises
//
//	P1  A violation is reported in a sentence with the names, tokens and moments that show it.
//	P2  A history that a correct service can produce has no violation, whatever was unknown or
//	    late.
//	P3  Nothing is dropped in silence: what could not be checked invalidates the run, or is
//	    counted.
//	P4  A million calls are checked in less than a minute on one core, in less than 2 GB.
//
// Files: check.go (Check, Report, C17), history.go, index.go, grants.go (what checks share),
// linearizability.go (C1), exclusion.go (C2, C3, C6 to C8), order.go (C4, C5, C13 to C16),
// outcomes.go (C9 to C12).
package check
