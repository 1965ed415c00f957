package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"zamok/bench/measure"
)

// point is one workload with one number of clients.
type point struct {
	Workload string
	Clients  int
	Title    string
}

// points are those with which a workload was run; their titles are made of their numbers of clients.
func (r *report) points(workload, title string) (all []point) {
	for _, n := range r.rs.Clients(workload) {
		all = append(all, point{workload, n, fmt.Sprintf(title, n)})
	}
	return all
}

func (r *report) parked() []point {
	return append(r.points("parked", "%d over 100 sessions:"), r.points("parked-own", "%d, each with its own session:")...)
}

// column is one value of one point, as a table shows it.
type column struct {
	point
	value string
	scale float64
}

func newColumn(title, value string, scale float64) column {
	return column{point{Title: title}, value, scale}
}

// byClients is a table of one value by the number of clients.
func (r *report) byClients(workload, value string, scale float64) string {
	points := r.points(workload, "%d")
	if workload == "own" {
		points = append(points, r.points("shared", "%d over 4")...)
	}
	var columns []column
	for _, p := range points {
		columns = append(columns, column{p, value, scale})
	}
	return r.systemTable(columns)
}

// table is a table of several values of one workload.
func (r *report) table(workload string, clients int, columns ...column) string {
	for i := range columns {
		columns[i].Workload, columns[i].Clients = workload, clients
	}
	return r.systemTable(columns)
}

// systemTable has a row for each system and a column for each value.
func (r *report) systemTable(columns []column) string {
	rows := [][]string{{"system"}}
	for _, c := range columns {
		rows[0] = append(rows[0], c.Title)
	}
	for _, s := range r.systems {
		row := []string{s.Title}
		for _, c := range columns {
			row = append(row, formatSummary(scaled(r.rs.Summary(s.Name, c.Workload, c.Clients, c.value), c.scale)))
		}
		rows = append(rows, row)
	}
	return markdown(rows)
}

// growth compares five nodes with three: cycles per second and the servers' processor time per thousand cycles.
func (r *report) growth() string {
	rows := [][]string{{"system", "clients", "cycles/s, ×3", "×5", "five over three", "server ms per 1 000 cycles, ×3", "×5", "five over three"}}
	for _, s := range r.systems {
		grown := Grown(s.Name)
		for _, n := range r.rs.Clients("own") {
			if r.rs.Summary(grown, "own", n, "rate").N == 0 {
				continue
			}
			row := []string{s.Title, strconv.Itoa(n)}
			for _, c := range []column{newColumn("", "rate", 1), newColumn("", "cpu", 1000)} {
				row = append(row, formatSummary(scaled(r.rs.Summary(s.Name, "own", n, c.value), c.scale)),
					formatSummary(scaled(r.rs.Summary(grown, "own", n, c.value), c.scale)),
					formatRatio(r.rs.Ratio(grown, s.Name, "own", n, c.value)))
			}
			rows = append(rows, row)
		}
	}
	return markdown(rows)
}

// ratios is a table of the rate of ours, and of its ratio to the rate of each other system.
func (r *report) ratios(ours System) string {
	peers := slices.DeleteFunc(slices.Clone(r.systems), isZamok)
	rows := [][]string{{"clients", "cycles/s"}}
	for _, s := range peers {
		rows[0] = append(rows[0], "× "+s.Title)
	}
	for _, p := range slices.Concat(r.points("own", "own keys, %d"), r.points("shared", "own keys, %d goroutines over 4 clients"),
		r.points("one", "one key, %d")) {
		row := []string{p.Title, formatSummary(r.rs.Summary(ours.Name, p.Workload, p.Clients, "rate"))}
		for _, s := range peers {
			row = append(row, formatRatio(r.rs.Ratio(ours.Name, s.Name, p.Workload, p.Clients, "rate")))
		}
		rows = append(rows, row)
	}
	return markdown(rows)
}

// markdown is a table of rows, of which the first is its head. A row with nothing beside its name is left out; if
// all are, the table is "".
func markdown(rows [][]string) string {
	rows = slices.DeleteFunc(rows, func(row []string) bool {
		return !slices.ContainsFunc(row[1:], func(cell string) bool { return cell != dash })
	})
	if len(rows) <= 1 {
		return ""
	}
	var text strings.Builder
	for i, row := range rows {
		fmt.Fprintf(&text, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			fmt.Fprintf(&text, "|%s\n", strings.Repeat("---|", len(row)))
		}
	}
	return text.String()
}

const dash = "–"

// formatNumber writes three figures, and thousands apart: 0.123, 1.23, 12.3, 123, 12 300.
func formatNumber(v float64) string {
	if v == 0 {
		return "0"
	}
	digits := 2 - int(math.Floor(math.Log10(math.Abs(v))))
	unit := math.Pow(10, float64(digits))
	v = math.Round(v*unit) / unit
	text := strconv.FormatFloat(v, 'f', max(0, digits), 64)
	if strings.Contains(text, ".") {
		text = strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
	}
	whole, rest, found := strings.Cut(text, ".")
	for i := len(whole) - 3; i > 0 && whole[i-1] != '-'; i -= 3 {
		whole = whole[:i] + " " + whole[i:]
	}
	if found {
		return whole + "." + rest
	}
	return whole
}

// formatSummary writes a median with its extremes.
func formatSummary(s measure.Summary) string {
	switch {
	case s.N == 0:
		return dash
	case s.N == 1 || formatNumber(s.Min) == formatNumber(s.Max):
		return formatNumber(s.Median)
	}
	return fmt.Sprintf("%s (%s – %s)", formatNumber(s.Median), formatNumber(s.Min), formatNumber(s.Max))
}

// scaled is a summary in another unit.
func scaled(s measure.Summary, by float64) measure.Summary {
	return measure.Summary{Median: s.Median * by, Min: s.Min * by, Max: s.Max * by, N: s.N}
}

// formatRatio writes a ratio, in bold: it is what is read first.
func formatRatio(s measure.Summary) string {
	if s.N == 0 {
		return dash
	}
	text := "**" + formatNumber(s.Median) + "×**"
	if s.N > 1 {
		text += fmt.Sprintf(" (%s – %s)", formatNumber(s.Min), formatNumber(s.Max))
	}
	return text
}
