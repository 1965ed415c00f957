// Policy checks the tree against rules that a compiler does not know.
//
//	go run ./cmd/policy
//
// prints each violation as file:line: what: why, and exits with 1 if there is one. The same check
// is a test of this package, so `go test ./...` checks the tree too.
//
// A rule that is only written down is forgotten, and a rule without its reason is switched off by
// the next person in a hurry. So each rule is a function over a parsed file, each ban has its
// reason, and for each rule testdata has small trees that break it.
//
// The rules; files.go holds those that look at a whole file:
//
//	imports     each package may import those to its left (architecture.txt)
//	calls       clocks are read in few places; only main ends the process (the same)
//	tests       a skipped test gives its reason; tests sleep only in virtual time
//	sizes       lines, functions and files are short
//	packagedocs each package has a doc.go
//	places      packages are in the folders that readers know
//	words       nothing unfinished, no path of one machine
//	module      go.mod names only what the product links
//
// These tables are statements of policy. Do not change one to make a build pass: a new import is a
// decision, which is taken by adding its line to architecture.txt.
//
// Files are read without build constraints: the same rules apply to code for other systems. Folders
// called testdata are read as text only.
package main
