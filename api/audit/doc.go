// Package audit writes the audit log: one line of JSON for each call of an operator and for each
// denial.
//
//	file, err := audit.Open(path)
//	log := audit.New(audit.Config{Out: file, Node: "n1", Allow: allow, …})
//	defer log.Stop()
//	log.Record(audit.Event{Who: "alice", Call: "ForceRelease",
//		On: map[string]string{"lock": "stock"}, Outcome: "done"})
//
// What can't be seen in texts of clients is escaped, so that no line affects a terminal or a log
// viewer. A line contains no secret and no token of a client. Reopen continues in a new file after
// a rotation.
//
// Record writes each line, for the acts of operators. RecordDenial bounds the lines, since any
// client can be denied as often as it likes: it calls Allow, counts the denials without a line, and
// writes their number for each principal later.
package audit
