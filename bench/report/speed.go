package report

import "strconv"

// point is one workload at one size.
type point struct {
	workload string
	clients  int
	title    string
}

// points are those at which rates are compared.
func (r *report) points() []point {
	var all []point
	for _, n := range r.rs.Clients("own") {
		all = append(all, point{"own", n, "own keys, " + strconv.Itoa(n)})
	}
	for _, n := range r.rs.Clients("shared") {
		all = append(all, point{"shared", n, "own keys, " + strconv.Itoa(n) + " goroutines over 4 clients"})
	}
	for _, n := range r.rs.Clients("one") {
		all = append(all, point{"one", n, "one key, " + strconv.Itoa(n)})
	}
	return all
}

func (r *report) ratios(ours System) {
	r.printf("## %s against the others\n\n", ours.Title)
	r.printf("Its rate, in cycles of lock and unlock a second, and how many times the other's that is.\n\n")
	head := []string{"clients", "cycles/s"}
	for _, s := range r.otherSystems() {
		head = append(head, "× "+s.Title)
	}
	t := newTable(head...)
	for _, p := range r.points() {
		own := r.rs.Summary(ours.Name, p.workload, p.clients, "rate")
		if own.N == 0 {
			continue
		}
		cells := []string{p.title, formatSummary(own)}
		for _, s := range r.otherSystems() {
			cells = append(cells, formatRatio(r.rs.Ratio(ours.Name, s.Name, p.workload, p.clients, "rate")))
		}
		t.row(cells...)
	}
	r.printf("%s\n", t)
}

// bySystem is a table of one value: systems down, points across.
func (r *report) bySystem(points []point, value string, scale float64) *table {
	head := []string{"system"}
	for _, p := range points {
		head = append(head, p.title)
	}
	t := newTable(head...)
	for _, s := range r.systems {
		cells := []string{s.Title}
		for _, p := range points {
			cells = append(cells, formatSummary(scaled(r.rs.Summary(s.Name, p.workload, p.clients, value), scale)))
		}
		t.row(cells...)
	}
	return t
}

func (r *report) pointsOf(workload string) []point {
	var found []point
	for _, n := range r.rs.Clients(workload) {
		found = append(found, point{workload, n, strconv.Itoa(n)})
	}
	return found
}

// uncontendedPoints is the points without contention.
func (r *report) uncontendedPoints() []point {
	points := r.pointsOf("own")
	for _, p := range r.pointsOf("shared") {
		p.title += " over 4"
		points = append(points, p)
	}
	return points
}

func (r *report) writeRates() {
	if len(r.uncontendedPoints()) == 0 {
		return
	}
	r.printf("## A key of one's own\n\nCycles a second, by the number of clients.\n\n%s\n", r.bySystem(r.uncontendedPoints(), "rate", 1))
	r.printf("![cycles a second by clients](benchmarks/own.svg)\n\n")
	r.printf("A cycle's median, in milliseconds.\n\n%s\n", r.bySystem(r.uncontendedPoints(), "cycle_p50", 1))
	r.printf("Its 95th percentile.\n\n%s\n", r.bySystem(r.uncontendedPoints(), "cycle_p95", 1))
	r.printf("Its 99th percentile.\n\n%s\n", r.bySystem(r.uncontendedPoints(), "cycle_p99", 1))
}

func (r *report) writeCosts() {
	if len(r.uncontendedPoints()) == 0 {
		return
	}
	r.printf("## What it costs\n\nThe servers' processor time per thousand cycles, in milliseconds.\n\n%s\n",
		r.bySystem(r.uncontendedPoints(), "cpu", 1000))
	r.printf("The clients', all in one process.\n\n%s\n", r.bySystem(r.uncontendedPoints(), "client_cpu", 1000))
	r.printf("The servers' memory afterwards, in MB.\n\n%s\n", r.bySystem(r.uncontendedPoints(), "memory", 1e-6))
}

func (r *report) writeContended() {
	one := r.pointsOf("one")
	if len(one) == 0 {
		return
	}
	r.printf("## One key for all\n\nCycles a second, by the number of clients that want it.\n\n%s\n", r.bySystem(one, "rate", 1))
	r.printf("![cycles a second by clients that want one key](benchmarks/one.svg)\n\n")
	r.printf("From one holder's unlock to the next one's lock: the median, in milliseconds.\n\n%s\n", r.bySystem(one, "handoff_p50", 1))
	r.printf("From asking to having: the 99th percentile, in milliseconds.\n\n%s\n", r.bySystem(one, "lock_p99", 1))
	r.printf("Fairness: Jain's index (1 is perfect; a dash where not everybody could have had a turn).\n\n%s\n", r.bySystem(one, "jain", 1))
	r.printf("The worst client's share, as a part of the mean.\n\n%s\n", r.bySystem(one, "worst", 1))
	r.printf("Grants out of order.\n\n%s\n", r.bySystem(one, "inversions", 1))
	r.printf("Holders beside another holder. Anything but 0 is a broken lock.\n\n%s\n", r.bySystem(one, "overlaps", 1))
}
