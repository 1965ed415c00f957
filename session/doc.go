// Package session is the table of leases: which clients are alive, by cluster time.
//
// A session is one client's lease. It is opened by a command and named by that command's index in
// the replicated sequence, so ids rise and are never used twice. It lives until its deadline passes
// without a renewal, or until it is closed. A renewal moves the deadline to the present cluster time plus its ttl, never
// back.
//
// A secret that the client chose proves that a session is its own and makes opening idempotent: the
// same secret, while its session lives, names the same session. Only a hash of it comes here.
//
// The table is a value of the state machine: it has no clock, no timer and no lock. Time is a
// number that its caller passes in. Nothing expires by itself: the state machine has one schedule of all
// deadlines, and ends sessions in the order (deadline, id) when cluster time has passed.
//
// Beside the lease a session's record carries what the state machine needs to know on each command of
// that session: the latest attachment and its number, the index of its last renewal, its acknowledged-through number and
// how many live tickets it has. They are kept here so that a command finds its session once.
//
// # Invariants
//
// [Table.Check] tests these by number:
//
//	S1  A session's key is its id, and ids are not 0.
//	S2  Each secret names exactly one living session, and each session is found by its secret.
//	S3  A deadline is never before the session's opening + ttl.
//	S4  The sum kept equals the sum computed over all records.
//
// # Files
//
//	session.go    the record of a session
//	table.go      all of them: by id and by secret
//	record/       fields as bytes and as sums, by one description
package session
