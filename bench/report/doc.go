// Package report turns results into docs/benchmarks.md and its plots. It links no library of a
// system and measures nothing; the same results give the same bytes.
//
//  1. Ratios come first: absolute numbers belong to one machine, ratios carry over.
//  2. An aim is printed beside the measured value, met or not.
//  3. A missing value is a dash, and a column without values is left out; failures are listed.
//
// The document is benchmarks.md.tmpl; table.go and aims.go make its tables, plot.go its plots.
package report
