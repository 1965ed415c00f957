// Package session is the table of leases: which clients are alive, by cluster time.
//
// A session is one client's lease. It is opened by a command and named by that command's index in
// the replicated sequence, so ids rise and are never used twice. It lives until its deadline passes
// without its having been heard, or until it is closed. Hearing from it moves the deadline to the
// present cluster time plus its ttl, never back.
//
// A secret that the client chose proves that a session is its own and makes opening idempotent: the
// same secret, while its session lives, names the same session. Only a hash of it comes here.
//
// The table is a value of the state machine: it has no clock, no timer and no lock. Time is a
// number that its caller hands in. Nothing expires by itself: [Table.Earliest] says who would be
// next, and the machine ends sessions in the order (deadline, id) when cluster time has passed.
//
// Beside the lease a session's record carries what the machine needs to know on each command of
// that session: the latest attachment and its number, when it was last heard, the floor of its tickets and how
// many it has in hand. They are kept here so that a command finds its session once.
//
// # The schedule
//
// A renewal changes a deadline and nearly never the question who is next. So the schedule files a
// session under a deadline that may be old, never one that is too late; only when an old filing
// comes up first is the session filed again under its true deadline. Renewing touches one record.
//
// # Invariants
//
// [Table.Check] tests these by number:
//
//	S1  A session's key is its id, and ids are not 0.
//	S2  Each secret names exactly one living session, and each session is found by its secret.
//	S3  Each session is filed in the schedule exactly once, at or before its deadline.
//	S4  A deadline is never before the session's opening + ttl.
//	S5  The sum kept equals the sum computed over all records.
//
// # Files
//
//	session.go    the record of a session
//	table.go      all of them: by id, by secret, and by deadline
//	record/       fields as bytes and as sums, by one description
package session
