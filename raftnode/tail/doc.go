// Package tail has the rule for a node whose log has lost its end: for whom it may vote, and when
// it is like any other again.
//
//	owed = tail.Higher(owed, cut)                  // on disk before the tail is overwritten
//	state := tail.State{Log: log, Owed: owed}
//	state.Owes()                                   // true: the node does not campaign
//	state.MayVoteFor(candidate)
//	owed, missing := tail.Sink(owed, self, voters, answers) // missing: who has to be asked still
//
// # Model
//
// A log that ends with a partial write does not show why. The power may have failed before the
// write was acknowledged, or the disk may have damaged it afterwards. A node that takes every such
// write for the former forgets what it promised, and its vote elects a leader that never had it:
//
//  1. n1 leads. n1 and n3 have entry 7, which is acknowledged to the client. n2 has not got it yet.
//  2. n3 starts again. Entry 7 is damaged, and n3 cuts it off.
//  3. n1 fails. n3 votes for n2, which leads without entry 7.
//
// So a node that cuts its log remembers the end of what it may have acknowledged: the owed end. It
// owes, as long as its own log ends below that. A node that owes follows, writes and acknowledges
// as ever, but it votes only for candidates whose logs end at the owed end or beyond, and never
// campaigns. It owes no more once its log ends there or beyond: it has the same entry again, or one
// of a later term. Ends compare as in a vote, first by term and then by index.
//
// If no leader comes, because too many nodes owe, the node asks all other voters. Each of them
// first raises its own term above that of the owed end, on disk, so that it takes nothing more from
// the leader of that term, or steps down if it is that. It waits for its write under way, and then
// answers where its log ends. When all have answered, the owed end sinks to the highest end among
// the answers ([Sink]). Whatever ends higher is in none of their logs, so too few of them have
// acknowledged it to commit it, and from their new term on none will. A leader of the owed end's
// term, or of a later one, has everything that was committed: its answer is enough.
//
// # Why all of them
//
// Of five nodes, some that do not answer could be left out. That would gain nothing: where the
// number of voters is odd and what is left suffices, the voters that answer and owe nothing are a
// majority, and elect one of themselves. And it would lose entries where the number is even and
// changes: of four voters that become three, two commit what the other two have never seen.
//
// The voters are those of the latest configuration in the node's log, and in the logs of all that
// answer: what was cut may have changed the configuration.
//
// # Promises
//
//	T1  Nothing that was committed is lost as long as, at any time, at most a minority of the
//	    voters of each configuration in use have lost what they acknowledged. A node counts until
//	    it owes nothing more.
//	T2  If all voters run and reach each other, none owes for ever: the one with the highest log
//	    owes nothing after one round. A write that was torn on every node is given up.
//	T3  An owed end rises only by another cut, and the higher of two counts.
//
// These are not promised: a majority whose tails are damaged is not noticed, and a node that owes
// waits for a voter that does not come back, unless a log that is left reaches the owed end. A
// single voter has nobody to ask.
//
// TestNothingIsLost and its neighbours check this against every reachable state of a small cluster.
package tail
