// Package aggregate counts events that are too many for a log line each, and emits their counts by
// key from time to time.
//
//	counter := aggregate.New(10*time.Second, 100, func(who string, c aggregate.Count[error]) {
//		log.Warn("refused", "caller", who, "times", c.N, "latest", c.Last)
//	})
//	defer counter.Stop()
//	…
//	counter.Add("alice", "others", err)
//
// The counts that are emitted at a time, and the memory, are bounded, whatever is added. Nothing is
// lost: an event whose key has no room is counted under a key for the rest.
package aggregate
