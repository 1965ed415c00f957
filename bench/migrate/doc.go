// Package migrate is the code of the guides for users of other lock services
// (docs/guide/from-*.md), and tests that run both sides of it: what a program did with the other
// system, and what it does with zamok, against real servers.
//
//  1. Each Go, Java, Python and SQL block of those guides is a part of a file here; each block for
//     a shell is run as it is.
//
//  2. Where the two sides behave alike, one test runs both. Where they differ, the test says how.
//
//  3. A system is skipped, with the reason, if its program is not installed.
//
//     migrate_test.go   servers, a cable to cut, and what is tested alike for all systems
//     guide_test.go     the blocks of the guides
//     etcd_test.go …    one file for each guide
package migrate
