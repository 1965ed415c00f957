// Package rules reads who may do what: the file of `zamok server --rules`.
//
//	set, err := rules.Parse(text)              // the error names the line
//	set.May(caller, rules.Lock, "account/200")
//	set.Readable(caller, "account/")           // what of a listing the caller may see
//
// A file:
//
//	groups:
//	  billing: [ci-billing, billing-api]
//	  sre: token # its members' tokens name it
//	rules:
//	  - groups: [billing]
//	    names: [account/*, stock]
//	    may: [lock, read, watch]
//	  - identities: [alice]
//	    groups: [sre]
//	    names: ["*"]
//	    may: [read, watch, release, operate]
//	  - groups: [authenticated]
//	    names: [public/*]
//	    may: [read]
//
// A rule allows the identities and groups that it names what it says, and no rule forbids anything: what no rule allows is
// denied. Names of locks, and identities, may end with a * for all that begin like it. A group has identities, or the
// tokens of its members name it (JWT): such a group is declared here, so that an issuer of tokens makes nobody a member of
// another. Every caller is in one of two groups that exist without being defined: authenticated, and anonymous.
//
// # Verbs
//
//	lock     acquire, shared or with permits as well
//	read     see a lock with its holders and queue, and check a token
//	watch    receive the events of a lock; it includes nothing of read
//	release  end the grants of other sessions; one of several locks ends as a whole
//	operate  of the cluster: end sessions, change members and settings, transfer, back up. It is about no name of a lock
//
// To open and renew a session, lock must be allowed for some lock. What a session does with its own tickets, once they wait or
// are granted, a caller may do that may do anything at all.
package rules
