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

// points are the points of a workload. Their titles contain the number of clients.
func (r *report) points(workload, title string) (all []point) {
	for _, n := range r.rs.Clients(workload) {
		all = append(all, point{workload, n, fmt.Sprintf(title, n)})
	}
	return all
}

// waiting are the points of waiters on held locks.
func (r *report) waiting() []point {
	return append(r.points("parked", "%d over 100 sessions"),
		r.points("parked-own", "%d, each with its own session")...)
}

// arrivals are the points of arrivals at a fixed rate that the page shows: a usual load, and a
// high one.
func (r *report) arrivals() []point {
	return slices.DeleteFunc(r.points("open", "%d"),
		func(p point) bool { return p.Clients != 50 && p.Clients != 90 })
}

// column is one value of one point, as a table shows it.
type column struct {
	point
	value string
	scale float64
}

func newColumn(title, workload string, clients int, value string, scale float64) column {
	return column{point{workload, clients, title}, value, scale}
}

// newValue is a column of pointTable, whose rows have the points.
func newValue(title, value string, scale float64) column {
	return newColumn(title, "", 0, value, scale)
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
	return r.table(columns...)
}

// table has a row for each system and a column for each value.
func (r *report) table(columns ...column) string { return r.systemTable(r.systems, columns) }

// today is a table without historic systems.
func (r *report) today(columns ...column) string {
	return r.systemTable(without(r.systems, isHistoric), columns)
}

func (r *report) systemTable(systems []System, columns []column) string {
	rows := [][]string{{"system"}}
	for _, c := range columns {
		rows[0] = append(rows[0], c.Title)
	}
	for _, s := range systems {
		row := []string{s.Title}
		for _, c := range columns {
			row = append(row, r.cell(s.Name, c))
		}
		rows = append(rows, row)
	}
	return markdown(rows, 1)
}

// pointTable has a row for each system and point, and a column for each value.
func (r *report) pointTable(what string, points []point, columns ...column) string {
	rows := [][]string{{"system", what}}
	for _, c := range columns {
		rows[0] = append(rows[0], c.Title)
	}
	for _, s := range r.systems {
		for _, p := range points {
			row := []string{s.Title, p.Title}
			for _, c := range columns {
				c.point = p
				row = append(row, r.cell(s.Name, c))
			}
			rows = append(rows, row)
		}
	}
	return markdown(rows, 2)
}

func (r *report) cell(system string, c column) string {
	return formatSummary(scaled(r.rs.Summary(system, c.Workload, c.Clients, c.value), c.scale))
}

// growth compares five nodes with three: cycles per second, and the servers' processor time per
// thousand cycles.
func (r *report) growth() string {
	rows := [][]string{{"system", "clients", "cycles/s, ×5", "over ×3",
		"server ms per 1000 cycles, ×5", "over ×3"}}
	for _, s := range r.systems {
		grown := Grown(s.Name)
		for _, n := range r.rs.Clients("own") {
			row := []string{s.Title, strconv.Itoa(n)}
			rate, cpu := newColumn("", "own", n, "rate", 1), newColumn("", "own", n, "cpu", 1000)
			for _, c := range []column{rate, cpu} {
				ratio := r.rs.Ratio(grown, s.Name, "own", n, c.value)
				row = append(row, r.cell(grown, c), formatRatio(ratio))
			}
			rows = append(rows, row)
		}
	}
	return markdown(rows, 2)
}

// ratios is a table of the ratio of zamok's rate to the rate of each other system, with the aims.
func (r *report) ratios() string {
	others := without(without(r.systems, isZamok), isHistoric)
	rows := [][]string{{"clients"}}
	for _, s := range others {
		rows[0] = append(rows[0], "× "+s.Title)
	}
	for _, p := range slices.Concat(r.points("own", "own keys, %d"),
		r.points("shared", "own keys, %d over 4"), r.points("one", "one key, %d")) {
		row := []string{p.Title}
		for _, s := range others {
			row = append(row, r.rateRatio(p, s.Name))
		}
		rows = append(rows, row)
	}
	return markdown(rows, 1)
}

// markdown is a table of rows; the first one is its head. The first columns are labels. Rows and
// columns without any value are left out; without any row the table is "".
func markdown(rows [][]string, labels int) string {
	hasValue := func(cell string) bool { return cell != dash }
	rows = slices.DeleteFunc(rows, func(row []string) bool {
		return !slices.ContainsFunc(row[labels:], hasValue)
	})
	if len(rows) <= 1 {
		return ""
	}
	for i := len(rows[0]) - 1; i >= labels; i-- {
		if !slices.ContainsFunc(rows[1:], func(row []string) bool { return hasValue(row[i]) }) {
			for j := range rows {
				rows[j] = slices.Delete(rows[j], i, i+1)
			}
		}
	}
	var text strings.Builder
	for i, row := range rows {
		fmt.Fprintln(&text, strings.Join(row, " | "))
		if i == 0 {
			fmt.Fprintf(&text, "---%s\n", strings.Repeat("|---", len(row)-1))
		}
	}
	return text.String()
}

const dash = "–"

// formatNumber writes three figures, with thousands apart from five digits on: 0.123, 12.3, 1230,
// 12 300.
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
	if len(strings.TrimPrefix(whole, "-")) == 4 {
		return whole
	}
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
	return formatNumber(s.Median) + formatRange(s)
}

// formatRange writes the extremes.
func formatRange(s measure.Summary) string {
	return fmt.Sprintf(" (%s–%s)", formatNumber(s.Min), formatNumber(s.Max))
}

// scaled is a summary in another unit.
func scaled(s measure.Summary, by float64) measure.Summary {
	return measure.Summary{Median: s.Median * by, Min: s.Min * by, Max: s.Max * by, N: s.N}
}

// formatRatio writes a ratio in bold, to be read first.
func formatRatio(s measure.Summary) string {
	if s.N == 0 {
		return dash
	}
	text := "**" + formatNumber(s.Median) + "×**"
	if s.N > 1 {
		text += formatRange(s)
	}
	return text
}
