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
//	  - groups: [sre]
//	    may: [operate]
//
// A rule allows its identities and groups its verbs on its names; docs/guide/access.md describes
// verbs, names and groups. Rules only allow; whatever is left is denied.
//
// Opening and renewing a session needs lock for at least one name, and so does downgrading a
// ticket, which renews its session. Releasing one, and reading about it, needs any permission at
// all.
//
// # Files
//
//	rules.go  Set: evaluation
//	parse.go  Parse: the YAML file
package rules
