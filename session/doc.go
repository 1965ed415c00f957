// Package session is the record of a lease: whether one client is alive, by cluster time.
//
// A session is opened by a command and named by that command's index in the replicated sequence, so ids rise and are
// never used twice. It lives until its deadline passes without a renewal, or until it is closed. A renewal moves the
// deadline to the present cluster time plus its ttl, never back.
//
// A secret that the client chose proves that a session is its own and makes opening idempotent: the
// same secret, while its session lives, names the same session. Only a hash of it comes here.
//
// Beside the lease a session's record carries what the state machine needs to know on each command of
// that session: the latest attachment and its number, the index of its last renewal, its acknowledged-through number and
// how many live tickets it has. They are kept here so that a command finds its session once. The state machine (package
// fsm) keeps the records, finds them by id and by secret, and ends them in the order of their deadlines.
//
// # Files
//
//	session.go    the record
//	record/       fields as bytes and as sums, by one description
//	tree/         ordered maps that are copied in constant time
//	visible/      texts of others with escapes for what can't be seen
package session
