// Package tally counts what would be too much to report each time, and reports the counts by key from time to time.
//
//	t := tally.New(10*time.Second, 100, func(who string, c tally.Count[error]) {
//		log.Warn("refused", "caller", who, "times", c.N, "latest", c.Last)
//	})
//	defer t.Stop()
//	…
//	t.Add("alice", "others", err)
//
// Whatever is added, the number of reports and the memory are bounded. Nothing is lost: what has no room for a key of its own
// is counted under another one.
package tally
