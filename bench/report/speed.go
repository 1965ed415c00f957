package report

import "strconv"

// point is one workload with one number of clients.
type point struct {
	workload string
	clients  int
	title    string
}

func (r *report) points(workload, before, after string) (all []point) {
	for _, n := range r.rs.Clients(workload) {
		all = append(all, point{workload, n, before + strconv.Itoa(n) + after})
	}
	return all
}

func (r *report) writeRatios(ours System) {
	r.printf("## %s against the others\n\n", ours.Title)
	r.printf("Its rate, in cycles of lock and unlock per second, and the ratio to each other system's rate.\n\n")
	peers := r.systemsWhere(isPeer)
	head := []string{"clients", "cycles/s"}
	for _, s := range peers {
		head = append(head, "× "+s.Title)
	}
	t := newTable(head...)
	points := append(r.points("own", "own keys, ", ""), r.points("shared", "own keys, ", " goroutines over 4 clients")...)
	for _, p := range append(points, r.points("one", "one key, ", "")...) {
		own := r.rs.Summary(ours.Name, p.workload, p.clients, "rate")
		if own.N == 0 {
			continue
		}
		cells := []string{p.title, formatSummary(own)}
		for _, s := range peers {
			cells = append(cells, formatRatio(r.rs.Ratio(ours.Name, s.Name, p.workload, p.clients, "rate")))
		}
		t.row(cells...)
	}
	r.printf("%s\n", t)
}
