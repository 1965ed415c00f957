package report

// column is one value of one point, as a table shows it.
type column struct {
	title, value string
	scale        float64
	point
}

// section is a piece of text and the tables below it. Without values for its tables, all of it is left out.
type section struct {
	text   string
	tables [][]column
	plot   string // a file beside the report; "" for none
}

func (r *report) writeSections() {
	for _, s := range r.sections() {
		tables := ""
		for _, columns := range s.tables {
			tables += r.table(columns)
		}
		if tables == "" {
			continue
		}
		r.printf("%s\n\n%s", s.text, tables)
		if s.plot != "" {
			r.printf("![%s](benchmarks/%s)\n\n", s.plot, s.plot)
		}
	}
}

// table has a row for each system and a column for each value; "" if there are no values.
func (r *report) table(columns []column) string {
	head := []string{"system"}
	for _, c := range columns {
		head = append(head, c.title)
	}
	t := newTable(head...)
	for _, s := range r.systems {
		cells := []string{s.Title}
		for _, c := range columns {
			cells = append(cells, formatSummary(scaled(r.rs.Summary(s.Name, c.workload, c.clients, c.value), c.scale)))
		}
		t.row(cells...)
	}
	if len(t.rows) == 0 {
		return ""
	}
	return t.String() + "\n"
}

// byPoint is one value at several points.
func byPoint(points []point, value string, scale float64) (columns []column) {
	for _, p := range points {
		columns = append(columns, column{p.title, value, scale, p})
	}
	return columns
}

// at is several values of one workload.
func at(workload string, clients int, columns ...column) [][]column {
	for i := range columns {
		columns[i].point = point{workload: workload, clients: clients}
	}
	return [][]column{columns}
}

func (r *report) sections() []section {
	own := append(r.points("own", "", ""), r.points("shared", "", " over 4")...)
	one := r.points("one", "", "")
	single := func(text string, points []point, value string, scale float64, plot string) section {
		return section{text, [][]column{byPoint(points, value, scale)}, plot}
	}
	value := func(title, name string, scale float64) column { return column{title: title, value: name, scale: scale} }
	all := []section{
		single("## One key for each client\n\nCycles per second, by the number of clients.", own, "rate", 1, "own.svg"),
		single("The median of a cycle, in milliseconds.", own, "cycle_p50", 1, ""),
		single("Its 95th percentile.", own, "cycle_p95", 1, ""),
		single("Its 99th percentile.", own, "cycle_p99", 1, ""),
		single("## Cost\n\nProcessor time of the servers per thousand cycles, in milliseconds.", own, "cpu", 1000, ""),
		single("Of the clients, which share one process.", own, "client_cpu", 1000, ""),
		single("Memory of the servers afterwards, in MB.", own, "memory", 1e-6, ""),
		single("## One key for all\n\nCycles per second, by the number of clients that want it.", one, "rate", 1, "one.svg"),
		single("From one holder's unlock to the next holder's lock: the median, in milliseconds.", one, "handoff_p50", 1, ""),
		single("From the request to the grant: the 99th percentile, in milliseconds.", one, "lock_p99", 1, ""),
		single("Fairness: Jain's index (1 is perfect; a dash where the run was too short for one turn each).", one, "jain", 1, ""),
		single("The smallest share of a client, as a part of the mean.", one, "worst", 1, ""),
		single("Grants out of order.", one, "inversions", 1, ""),
		single("Simultaneous holders. Anything but 0 is a broken lock.", one, "overlaps", 1, ""),
		{text: "## The report's three scenarios\n\n*Timeline*: 10 threads repeatedly take one lock and hold it for a random time up to " +
			"20 ms. An ideal lock\nis always in use, and every thread has had as many turns.", plot: "timeline.svg",
			tables: at("timeline", 0, value("grants/s", "rate", 1), value("lock in use, %", "used", 100), value("wait p50, ms", "wait_p50", 1),
				value("longest wait, ms", "wait_max", 1), value("fewest turns", "least", 1), value("most turns", "most", 1), value("Jain", "jain", 1))},
		{text: "*Wait for lock*: 32 threads request one lock at the same moment and hold it for 10 ms each; with an ideal lock\n" +
			"all are done after 320 ms.", plot: "wait.svg",
			tables: at("wait", 0, value("all done after, ms", "total", 1), value("× ideal", "stretch", 1), value("wait p50, ms", "wait_p50", 1),
				value("longest wait, ms", "wait_max", 1))},
		{text: "*Series*: 8 threads race through 250 locks by TryLock; the winner of a lock keeps it. A lock without a winner was\n" +
			"refused to all though it was free.",
			tables: at("series", 0, value("all done after, ms", "total", 1), value("tries/s", "rate", 1), value("without a winner", "unwon", 1),
				value("won twice", "overlaps", 1))},
	}
	intro := "## Waiting\n\nWaiters for a hundred held locks: what waiting costs the servers, and which waits fail. Then the locks are\n" +
		"released, and each waiter passes its lock on: how many are served within 20 s.\n\n"
	for _, p := range append(r.points("parked", "", " over 100 sessions:"), r.points("parked-own", "", ", each with its own session:")...) {
		all = append(all, section{text: intro + p.title, tables: at(p.workload, p.clients, value("% of a core", "core", 100),
			value("server memory each, KB", "memory_each", 1e-3), value("granted too early", "early", 1), value("failed", "lost", 1),
			value("sessions not opened", "unopened", 1), value("served", "served", 1), value("in, s", "serving", 1))})
		intro = ""
	}
	return append(all,
		section{text: "## Failures of holders and leaders\n\nThe holder's process is killed (kill -9); its lease is 10 s, counted from its " +
			"last renewal. PostgreSQL's lock has\nno lease and ends with its connection.", tables: at("dead", 0, value("free after, s", "freed", 1e-3))},
		section{text: "The same with release on disconnect.", tables: at("disconnect", 0, value("free after, ms", "freed", 1))},
		section{text: "The leader is killed (kill -9) while one client holds a lock, ten wait for it, and one keeps requesting another lock.",
			tables: at("killed", 0, value("next lock after, ms", "next", 1), value("longest attempt, ms", "longest", 1),
				value("held lock survived", "survived", 1), value("of ten waiting, served", "served", 1),
				value("out of order", "inversions", 1), value("held twice", "twice", 1))})
}
