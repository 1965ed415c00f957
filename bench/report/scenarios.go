package report

// column is one value of a workload as a table shows it.
type column struct {
	title, value string
	scale        float64
}

// workloadTable is a table of one workload: systems down, values across.
func (r *report) workloadTable(workload string, clients int, columns ...column) *table {
	head := []string{"system"}
	for _, c := range columns {
		head = append(head, c.title)
	}
	t := newTable(head...)
	for _, s := range r.systems {
		cells := []string{s.Title}
		for _, c := range columns {
			cells = append(cells, formatSummary(scaled(r.rs.Summary(s.Name, workload, clients, c.value), c.scale)))
		}
		t.row(cells...)
	}
	return t
}

func (r *report) writeScenarios() {
	if t := r.workloadTable("timeline", 0,
		column{"grants/s", "rate", 1}, column{"lock in use, %", "used", 100}, column{"wait p50, ms", "wait_p50", 1},
		column{"longest wait, ms", "wait_max", 1}, column{"fewest turns", "least", 1}, column{"most turns", "most", 1},
		column{"Jain", "jain", 1}); !t.empty() {
		r.printf("## The report's three scenarios\n\n*Timeline*: 10 threads take one lock again and again and hold it for a ")
		r.printf("random time up to 20 ms. An ideal lock\nis in use all the time, and everybody has had as many turns.\n\n%s\n", t)
		r.printf("![who held the lock when](benchmarks/timeline.svg)\n\n")
	}
	if t := r.workloadTable("wait", 0,
		column{"all done after, ms", "total", 1}, column{"× ideal", "stretch", 1}, column{"wait p50, ms", "wait_p50", 1},
		column{"longest wait, ms", "wait_max", 1}); !t.empty() {
		r.printf("*Wait for lock*: 32 threads ask for one lock at the same moment and hold it for 10 ms each; with an ideal lock\n")
		r.printf("all are done after 320 ms.\n\n%s\n![how long each waited](benchmarks/wait.svg)\n\n", t)
	}
	if t := r.workloadTable("series", 0,
		column{"all done after, ms", "total", 1}, column{"tries/s", "rate", 1}, column{"won by nobody", "unwon", 1},
		column{"won twice", "overlaps", 1}); !t.empty() {
		r.printf("*Series*: 8 threads race through 250 locks by TryLock; whoever wins one keeps it. A lock that nobody won was refused\n")
		r.printf("to all though it was free.\n\n%s\n", t)
	}
}

func (r *report) writeFaults() {
	parked := []column{{"% of a core", "core", 100}, {"server memory each, KB", "memory_each", 1e-3}, {"let in too early", "early", 1},
		{"failed", "lost", 1}, {"sessions not opened", "unopened", 1}, {"served", "served", 1}, {"in, s", "serving", 1}}
	r.printf("## Waiting\n\nWaiters for a hundred held locks. First nothing happens: what that costs the servers, and who fails. Then the\n")
	r.printf("locks are given back, and each waiter that gets one passes it on: who is served within 20 s.\n\n")
	for _, n := range r.rs.Clients("parked") {
		r.printf("%s over 100 sessions:\n\n%s\n", formatNumber(float64(n)), r.workloadTable("parked", n, parked...))
	}
	for _, n := range r.rs.Clients("parked-own") {
		r.printf("%s with a session and a connection each:\n\n%s\n", formatNumber(float64(n)), r.workloadTable("parked-own", n, parked...))
	}
	r.printf("## Accidents\n\n")
	if t := r.workloadTable("dead", 0, column{"free after, s", "freed", 1e-3}); !t.empty() {
		r.printf("The holder's process is killed (kill -9); its lease is 10 s, counted from its last renewal. A lock of\n")
		r.printf("PostgreSQL's has no lease and ends with its connection.\n\n%s\n", t)
	}
	if t := r.workloadTable("disconnect", 0, column{"free after, ms", "freed", 1}); !t.empty() {
		r.printf("The same with release on disconnect.\n\n%s\n", t)
	}
	if t := r.workloadTable("killed", 0, column{"next lock after, ms", "next", 1}, column{"longest attempt, ms", "longest", 1},
		column{"held lock survived", "survived", 1}, column{"of ten waiting, served", "served", 1},
		column{"out of order", "inversions", 1}, column{"held twice", "twice", 1}); !t.empty() {
		r.printf("The leader is killed (kill -9) while one client holds a lock, ten wait for it, and one asks for another lock\n")
		r.printf("all the time.\n\n%s\n", t)
	}
}
