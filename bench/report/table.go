package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"zamok/bench/measure"
)

// table is one of Markdown's.
type table struct {
	head []string
	rows [][]string
}

func newTable(head ...string) *table { return &table{head: head} }

// row adds a row, unless there is nothing in it beside its name.
func (t *table) row(cells ...string) {
	for _, c := range cells[1:] {
		if c != dash {
			t.rows = append(t.rows, cells)
			return
		}
	}
}

func (t *table) String() string {
	var b strings.Builder
	write := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	write(t.head)
	fmt.Fprintf(&b, "|%s\n", strings.Repeat("---|", len(t.head)))
	for _, r := range t.rows {
		write(r)
	}
	return b.String()
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
