package tree_test

import (
	"cmp"
	"fmt"

	"zamok/fsm/internal/tree"
)

// A snapshot is a clone: it keeps what was there, whatever happens to the
// original, and may be read on another goroutine meanwhile.
func Example() {
	type lock struct{ holder, waiters int }

	locks := tree.New[string, lock](cmp.Compare[string])
	locks.Set("jobs/mail", lock{holder: 7})
	locks.Set("jobs/invoices", lock{holder: 4})

	snapshot := locks.Clone()
	locks.Ref("jobs/invoices").waiters++
	locks.Delete("jobs/mail")

	for name, l := range snapshot.All() {
		fmt.Println("then:", name, *l)
	}
	for name, l := range locks.From("jobs/") {
		fmt.Println("now: ", name, *l)
	}
	// Output:
	// then: jobs/invoices {4 0}
	// then: jobs/mail {7 0}
	// now:  jobs/invoices {4 1}
}
