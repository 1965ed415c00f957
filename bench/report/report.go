package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"zamok/bench/measure"
)

// System describes a system in the report: Durability is what survives which failure, Client the library.
type System struct{ Name, Title, Durability, Client, Notes string }

// GrownNodes is how many nodes the systems have whose growth is measured; usually they have three.
const GrownNodes = 5

// Grown names a system with GrownNodes.
func Grown(name string) string { return fmt.Sprintf("%s-%d", name, GrownNodes) }

// report is one document in the making.
type report struct {
	rs      measure.Results
	systems []System // those that have results, in order
}

//go:embed benchmarks.md.tmpl
var document string

// Write makes FOLDER/benchmarks.md and the plots beside it, from what was measured. source is the name
// of the file of results.
func Write(folder, source string, systems []System, rs measure.Results) error {
	r := &report{rs: rs}
	for _, s := range systems {
		if slices.ContainsFunc(rs.Records, func(rec measure.Record) bool { return rec.System == s.Name && rec.Failed == "" }) {
			r.systems = append(r.systems, s)
		}
	}
	parsed, err := template.New("benchmarks.md").Funcs(template.FuncMap{"ours": r.ours, "ratios": r.ratios, "targets": r.targetTable,
		"byClients": r.byClients, "parked": r.parked, "growth": r.growth, "column": newColumn, "table": r.table, "failures": r.failures}).Parse(document)
	if err != nil {
		return err
	}
	names := slices.SortedFunc(maps.Keys(rs.Run.Versions), func(a, b string) int {
		return strings.Compare(strings.ToLower(a), strings.ToLower(b))
	})
	for i, name := range names {
		names[i] = name + " " + rs.Run.Versions[name]
	}
	var text bytes.Buffer
	err = parsed.Execute(&text, map[string]any{"Source": source, "Run": rs.Run, "Versions": strings.Join(names, ", "), "Systems": r.systems})
	if err != nil {
		return err
	}
	files, err := r.plots()
	if err != nil {
		return err
	}
	files["benchmarks.md"] = text.Bytes()
	if err := os.MkdirAll(filepath.Join(folder, "benchmarks"), 0o755); err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func isZamok(s System) bool { return strings.HasPrefix(s.Name, "zamok") }
func isPeer(s System) bool  { return !isZamok(s) }

func (r *report) ours() []System { return slices.DeleteFunc(slices.Clone(r.systems), isPeer) }

// failures are the records of what failed, as a table shows them.
func (r *report) failures() (failed []measure.Record) {
	for _, rec := range r.rs.Records {
		if rec.Failed != "" {
			rec.Workload = measure.WorkloadName(rec.Workload, rec.Clients)
			rec.Failed, _, _ = strings.Cut(strings.ReplaceAll(rec.Failed, "|", "/"), "\n")
			failed = append(failed, rec)
		}
	}
	return failed
}
