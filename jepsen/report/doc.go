// Package report writes down what happened in a run: one directory for people, who read its page in
// a minute, and for programs. It judges nothing; package check has done that.
//
//	summary, err := report.Write(dir, report.Run{History: &h, Report: r, Rerun: "make jepsen SEED=7"})
//
// The directory:
//
//	summary.md      the verdict, how often what happened, what broke, and how to repeat it
//	summary.json    the same for programs: [Summary]
//	timeline.html   who held the busiest locks when, who waited, how long calls took, faults above
//	order-….html    porcupine's picture of each lock that a violation names, or of the busiest one
//	history.jsonl   the history, as package check reads it
//	logs/           the servers' own words
//
// # What is counted
//
// An outage is a time of more than outageMin in which none of a prober's calls succeeded: from the last
// answer, or if nothing was asked then from the first call after it, to the next answer. Without probers
// all clients are taken together, so that one that is served is enough, and calls of lock count only if
// they were granted at once: the others may have waited for clients. An outage is told of every kind of
// fault that was under way in it, so with two at once of both; if none was when it began, also of those that
// had ended less than faultTailMax before. Of a fault that began when it lasted already it is told only as far as it fell
// into the fault's time and the faultTailMax behind it.
//
// A fault without a kind is not counted: it says of one client more what another fault, which is counted,
// voids.
//
// A fault without a kind says only what another one voids, and is not counted.
//
// A change of leader is each epoch after the first. If epochs are not told, they are guessed from the
// terms that reads showed: those that nobody asked in are missing.
//
// Waiting for a lock and the answer to a call are two things: calls that were told to wait are counted
// apart, by Op.Queued.
//
// # Invariants
//
//	I1  Nothing that was recorded reaches a page as markup, and no page asks the network for anything.
//	I2  timeline.html has at most pageMax bytes, whatever the history. Where there is more to draw than
//	    fits, short times of holding are drawn as one bar that tells how many they are; none is left
//	    out. Around what a violation names, each has its own.
//	I3  The counts are those of the history: each call, hold and fault is counted once.
//
// # Not promised
//
// The moments of a violation are read out of its sentence, and are drawn as far as it names any.
package report
