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

// System describes a system in the report. Durability says what survives which failure, Client is
// the library.
type System struct {
	Name, Title, Durability, Client, Notes string

	Historic bool // an older algorithm: only how it works under contention is shown, and its rates
}

// GrownNodes is the number of nodes of a grown system; the others have three.
const GrownNodes = 5

// Grown names a system with GrownNodes.
func Grown(name string) string { return fmt.Sprintf("%s-%d", name, GrownNodes) }

// report is the data of one document.
type report struct {
	rs      measure.Results
	systems []System // with results, in order
}

//go:embed benchmarks.md.tmpl
var document string

// Write writes FOLDER/benchmarks.md and its plots. source is the name of the file of results.
func Write(folder, source string, systems []System, rs measure.Results) error {
	r := &report{rs: rs}
	for _, s := range systems {
		if slices.ContainsFunc(rs.Records,
			func(rec measure.Record) bool { return rec.System == s.Name && rec.Failed == "" }) {
			r.systems = append(r.systems, s)
		}
	}
	parsed, err := template.New("benchmarks.md").Funcs(template.FuncMap{
		"ratios": r.ratios, "aims": r.aimTable, "growth": r.growth, "failures": r.failures,
		"byClients": r.byClients, "column": newColumn, "table": r.table, "today": r.today,
		"value": newValue, "pointTable": r.pointTable,
	}).Parse(document)
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
	err = parsed.Execute(&text, map[string]any{"Source": source, "Run": rs.Run,
		"Versions": strings.Join(names, ",\n"), "Systems": r.systems, "Contended": []int{16, 256},
		"Arrivals": r.arrivals(), "Waiting": r.waiting()})
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

// ours is the system that is compared with the others. Systems whose names begin so are zamok, too.
const ours = "zamok"

func isZamok(s System) bool    { return strings.HasPrefix(s.Name, ours) }
func isHistoric(s System) bool { return s.Historic }

func without(systems []System, leftOut func(System) bool) []System {
	return slices.DeleteFunc(slices.Clone(systems), leftOut)
}

// failures are the records of failures, in the form of the table.
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
