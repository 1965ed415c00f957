// Package limits bounds what one caller may use of a node: how much it may have open at a time, and
// how many requests per second it may make. So capacity remains for others.
//
//	set, err := limits.Parse([]string{"requests-per-identity=1000/s", "streams=2000"})
//	…
//	l := limits.New(limits.Config{Set: set, Connections: 16384, Logger: logger})
//	end, err := l.Open(limits.Watches, caller.Principal())
//	if err != nil {
//		return err // not done; it names the limit
//	}
//	defer end()
//
// A limit applies to the node as a whole or to each caller. docs/operations.md lists all with their
// defaults.
//
// A rate of N/s allows a burst of N requests, and one more each 1/N of a second. A refused request
// does not count.
//
// A caller is counted by its principal (Caller.Principal of package gate). Callers that have
// nothing open and have made no request for a second take no memory, and at most rowsMax callers
// have a rate of their own; the others share one.
package limits
