// Policy holds the tree to the rules that a compiler does not know.
//
//	go run ./cmd/policy
//
// prints each violation as file:line: what: why, and exits with 1 if there is one. The same check
// is a test of this package, so `go test ./...` holds the tree too.
//
// A rule that is only written down rots; a rule that fails without its reason is switched off by
// the next person in a hurry. So each rule is a function over a parsed file, each ban carries the
// sentence that says why, and for each rule testdata holds small trees that break it.
//
// The rules; files.go holds those that look at a whole file:
//
//	imports     each package may import those to its left (architecture.txt)
//	calls       clocks are read in few places; only main ends the process (the same)
//	tests       a skipped test gives its reason; a test that sleeps does so in virtual time
//	sizes       functions and files that can be seen at once
//	packagedocs each package has a doc.go
//	words       nothing unfinished, no path of one machine
//	module      go.mod names what the product links, and nothing else
//
// These tables are statements of policy. Do not change one to make a build pass: a new import is
// a decision, and its line in architecture.txt is where it is taken.
//
// Files are read as they lie, without build constraints: what is written for another system is
// held to the same rules. Folders called testdata are read as text only.
package main
