// Mutants plants known bugs, one at a time, and demands that a test catches each.
//
//	go run ./cmd/mutants [-run REGEXP] [-known] [-since FILE] [-parallel N] [-timeout D]
//
// A suite that passes proves little until it has been seen to fail. Each mutant is a patch under
// PACKAGE/testdata/mutants, for any package of this module, which begins with what it plants, why
// that matters and which test catches it:
//
//	# mutation: the queue is served from its back
//	# effect: the first waiter may wait forever
//	# killed by: ./fsm TestStories/every_waiter_is_granted
//	--- a/fsm/grant.go
//	+++ b/fsm/grant.go
//	@@ -41,7 +41,7 @@ …
//
// A further line, "# name: …", is for bugs with a name of their own: those of the table in docs/testing.md,
// which -known makes.
//
// The patch is applied to copies of the files, which go test -overlay puts in the place of the
// originals: the tree is never touched, and production code has no switch for its own bugs.
//
// # Verdicts
//
//	caught     the named test failed, in the first of three runs, or in a later one, which is noted
//	elsewhere  the named test passed, another one of its package failed: the patch names the wrong one
//	survived   no test of the package failed
//	broken     the mutant does not compile or could not be run, so no test has judged it
//	stale      the patch no longer applies, or is not in the form above
//
// Anything but caught makes the command exit with 1. Before the first mutant the named tests run on
// the tree as it is: a test that fails anyway, or does not exist, catches nothing. How long each takes there
// also bounds it: one that takes five times as long and 5 s more waits for what never comes, and has failed.
//
// # After a landing
//
// All mutants take some twenty minutes, so .ci/run asks with -since only for those that are due: whose patch,
// code or test has changed since the last commit that passed, and of the others a tenth. Which tenth,
// and which commit, is in .ci/passed, so each mutant is run at least once in ten landings.
//
// # Applying
//
// The lines that a hunk shows must be found exactly as they are. They may have moved: then there
// must be one place only where they fit. So an edit elsewhere in the file does no harm, and a patch
// never lands in a place that its author did not see.
//
// A patch changes Go files of the product only: no tests, no new files, and no import lines of this
// module, which make rename would change. That every patch applies is a plain test of this package,
// so go test ./... notices a stale one without running any mutant.
package main
