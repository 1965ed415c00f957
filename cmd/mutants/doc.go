// Mutants inserts known bugs, one at a time, and checks that a test catches each.
//
//	go run ./cmd/mutants [-run REGEXP] [-known] [-since FILE] [-parallel N] [-timeout D]
//
// A suite that passes proves little until it has been seen to fail. Each mutant is a patch under
// PACKAGE/testdata/mutants, for any package of this module. It begins with the bug, its effect and
// the test that catches it:
//
//	# mutation: the queue is served from its back
//	# effect: the first waiter may wait forever
//	# killed by: ./fsm TestStories/every_waiter_is_granted
//	--- a/fsm/grant.go
//	+++ b/fsm/grant.go
//	@@ -41,7 +41,7 @@ …
//
// Bugs with a name have another line, "# name: …". They are those of the table in known.md,
// which -known prints.
//
// The patch is applied to copies of the files, which go test -overlay uses instead of the
// originals: the tree stays as it is, and production code has no switch for its own bugs.
//
// # Verdicts
//
//	caught     the named test failed, in the first of three runs, or in a later one, whose number
//	           is printed
//	elsewhere  the named test passed, another one of its package failed: the patch names the wrong
//	           one
//	survived   no test of the package failed
//	broken     the mutant does not compile or could not be run
//	stale      the patch no longer applies, or has another form than above
//
// Any other verdict than caught makes the command exit with 1. Before the first mutant the named
// tests run on the tree as it is: each must exist and pass. How long it takes there also bounds it:
// a test that takes five times as long and 5 s more has failed.
//
// # After a landing
//
// All mutants take some twenty minutes. So .ci/run runs, by -since, only those that are due: whose
// patch, code or test has changed since the last commit that passed, and a tenth of the others.
// .ci/passed has that commit and the number of the tenth, so each mutant is run at least once in
// ten landings.
//
// # Applying
//
// The lines of a hunk must occur exactly as they are. If they have moved, they must fit in one
// place only. So an edit elsewhere in the file does no harm, and a patch changes only what its
// author saw.
//
// A patch changes only Go files of the product: no tests, no new files, and no import lines of this
// module, which make rename would change. A test of this package checks that every patch applies,
// so go test ./... finds a stale one without running any mutant.
package main
