// Package limits bounds what one caller may take of a node: how much of something it may have open, and how often it
// may ask in a second. So there is something left for others.
//
//	set, err := limits.Parse([]string{"requests-per-identity=1000/s", "streams=2000"})
//	…
//	l := limits.New(limits.Config{Set: set, Connections: 16384, Logger: logger})
//	end, err := l.Open(limits.Watches, caller)
//	if err != nil {
//		return err // not done; it names the limit
//	}
//	defer end()
//
// A limit is one of the node as a whole or of each caller. Unless it is configured, a caller's limit is three quarters of
// what the node has: one caller alone is hardly limited, and never leaves nothing to others. Rates have no default.
//
// A rate of N/s allows N requests at once, and one more each 1/N of a second. Who is refused does not use up its rate.
//
// What a caller is counted under is an Account of package access: an identity, or the network of an address.
// Callers that have nothing open and have not asked for a second take no memory for long, and no more than rowsMax have a
// rate of their own; others share one.
package limits
