package clock_test

import (
	"fmt"

	"zamok/clock"
)

// A client asks for its lease of ten seconds to be renewed, and works out how
// long it may continue without another word from the cluster.
func ExampleLocalDeadline() {
	var here clock.Manual // A program uses clock.System().
	trust := clock.NewLocalDeadline(10 * clock.Second)

	sent := here.Now() // Taken before the request leaves, and sent along.
	here.Advance(300 * clock.Millisecond)
	// The answer brings sent back, and the cluster's time after the entry.
	trust.Confirm(clock.Confirmation{Sent: sent, At: clock.Time(clock.Hour)})

	until, _ := trust.Until()
	fmt.Println("left:", here.Now().Until(until))

	here.Suspend(clock.Minute) // The laptop's lid is closed.
	fmt.Println("valid after sleep:", trust.Valid(here.Now()))
	// Output:
	// left: 9.2s
	// valid after sleep: false
}
