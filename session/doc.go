// Package session is the record of a session, the lease of one client: what the client acquires is
// held only while its session lives.
//
//	s := session.Session{ID: 7, Settings: session.Settings{TTL: 10 * clock.Second}, Opened: now}
//	s.Renew(now, index) // until now + 10 s
//
// A command opens a session, whose id is that command's index in the replicated sequence. So ids
// rise, and none is used twice. All times are cluster time, which stands still without a leader.
//
//   - Renewal: an entry of the log lists the sessions that it renews, and each command of the
//     client itself renews its session, too. [Session.Renew] moves the deadline to the present
//     cluster time plus the ttl, never back.
//   - Expiry: a session ends in the entry whose time reaches its deadline, unless that entry renews
//     it. Package fsm has the schedule (expire.go) and the three other ends (session.go): the
//     client closes it, an operator expires it, or its stream broke (release on disconnect).
//
// When a client sends renewals, and until when it may consider its lease valid: package client
// (renewal.go), package clock, and docs/proofs/time.md.
//
// A secret that the client chose proves that a session is its own and makes opening idempotent: the
// same secret, while its session lives, names the same session. Only a hash of it comes here.
//
// A record also has what the state machine needs for each command of that session, so that a
// command finds its session once. The state machine keeps the records, and finds them by id and by
// secret. Package fsm/record codes them for its log and its snapshots.
package session
