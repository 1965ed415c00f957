// Package rules reads and evaluates access rules, the file of `zamok server --rules`.
//
//	set, err := rules.Parse(text) // the error has the line
//	set.May(caller, rules.Lock, "account/200")
//	set.Readable(caller, rules.Read, "account/") // the ranges of names that the caller may read
//
// A file:
//
//	groups:
//	  billing: [ci-billing, billing-api]
//	  sre: token # the members have it in the claim groups of their JWT
//	rules:
//	  - groups: [billing]
//	    names: [account/*, stock]
//	    may: [lock, read, watch]
//	  - identities: [alice]
//	    names: ["*"]
//	    may: [read, watch, release]
//	  - identities: [alice]
//	    groups: [sre]
//	    may: [operate]
//	  - groups: [authenticated]
//	    names: [public/*]
//	    may: [read]
//
// A rule allows its identities and groups its verbs on its names. Whatever no rule allows is denied, and no rule denies
// anything. A trailing * in a name or an identity matches every text with that prefix. The members of a group are listed, or
// come from the claim groups of JWTs if the group is declared as "token"; so an issuer cannot add members to a listed group. Two
// groups are built in: every caller is either in authenticated or in anonymous.
//
// # Verbs
//
//	lock     acquire locks, shared or with permits as well; open and renew sessions
//	read     see a lock with its holders and queue, and check a token
//	watch    receive the events of a lock; it does not include read
//	release  end grants of other sessions; an acquisition of several locks ends as a whole
//	operate  end sessions, change members and settings, transfer, back up. It applies to the cluster and has no names
//
// Opening and renewing a session needs lock for at least one name. Commands of a session about its own tickets (renew,
// release, downgrade) need any permission at all.
//
// # Files
//
//	rules.go  Set: evaluation
//	parse.go  Parse: the YAML file
package rules
