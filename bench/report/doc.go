// Package report turns results into docs/benchmarks.md and its plots. It links no system's library and
// measures nothing; the same results give the same bytes.
//
//  1. Ratios come first: absolute numbers belong to one machine, ratios carry over.
//  2. Every aim that was set is printed with what was measured, met or not.
//  3. What is missing is a dash; what failed is listed.
//
// The document is benchmarks.md.tmpl; table.go and targets.go make its tables, plot.go its plots.
package report
