// Package audit records who did what as an operator, and what was denied to whom: one line of JSON for each.
//
//	log := audit.New(file, "n1")
//	log.Record(audit.Event{Who: "alice", Call: "ForceRelease", On: map[string]string{"lock": "stock"}, Outcome: "done"})
//
// A line is ASCII: characters of others that a terminal or a log viewer might obey are escaped. It has no secret and no
// token of a client.
package audit
