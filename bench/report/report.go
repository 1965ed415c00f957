package report

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"zamok/bench/measure"
)

// System is one row of the tables.
type System struct {
	Name, Title, Durability, Client, Notes string
	TransportOnly                          bool // no lock at all: the transport alone
}

// report is one document in the making.
type report struct {
	strings.Builder
	rs      measure.Results
	systems []System // those that have results, in order
	source  string
}

// Write makes FOLDER/benchmarks.md and the plots beside it, from what was measured. source is the name
// of the file of results.
func Write(folder, source string, systems []System, rs measure.Results) error {
	plots := filepath.Join(folder, "benchmarks")
	if err := os.MkdirAll(plots, 0o755); err != nil {
		return err
	}
	text, drawings := render(source, systems, rs)
	for name, svg := range drawings {
		if err := os.WriteFile(filepath.Join(plots, name), []byte(svg), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(folder, "benchmarks.md"), []byte(text), 0o644)
}

func render(source string, systems []System, rs measure.Results) (text string, drawings map[string]string) {
	r := &report{rs: rs, source: source}
	for _, s := range systems {
		if slices.ContainsFunc(rs.Records, func(rec measure.Record) bool { return rec.System == s.Name && rec.Failed == "" }) {
			r.systems = append(r.systems, s)
		}
	}
	r.writeHeader()
	for _, ours := range r.zamokSystems() {
		r.ratios(ours)
		r.writeTargets(ours)
	}
	r.writeRates()
	r.writeCosts()
	r.writeContended()
	r.writeScenarios()
	r.writeFaults()
	r.writeSystems()
	r.failures()
	return r.String(), r.plots()
}

// zamokSystems are the systems that the others are compared with.
func (r *report) zamokSystems() []System {
	return slices.DeleteFunc(slices.Clone(r.systems), func(s System) bool { return !strings.HasPrefix(s.Name, "zamok") })
}

func (r *report) otherSystems() []System {
	return slices.DeleteFunc(slices.Clone(r.systems), func(s System) bool { return strings.HasPrefix(s.Name, "zamok") })
}

func (r *report) printf(format string, args ...any) { fmt.Fprintf(r, format, args...) }

func (r *report) writeHeader() {
	run := r.rs.Run
	r.printf("# Side by side\n\n")
	r.printf("Written by `make bench` from [%s](../bench/results/%s); do not edit. What the words mean and how it is\n", r.source, r.source)
	r.printf("measured stands in [bench/doc.go](../bench/doc.go). Where the time goes: [performance](performance.md).\n\n")
	r.printf("Measured %s: %d cores (%s), %s of memory, Linux %s, %s.\n", run.Begun, run.Cores, run.Machine, run.Memory, run.Kernel, run.Disk)
	r.printf("Servers and clients share the machine, and all nodes of a system share its disk. A figure is the median of %d\n", run.Rounds)
	r.printf("rounds, a rate over %g s in each, with the least and the greatest in brackets; a ratio is taken within a round.\n", run.Seconds)
	r.printf("Read the ratios: they carry over to another machine, the numbers do not.\n\n")
	names := slices.SortedFunc(maps.Keys(run.Versions), func(a, b string) int {
		return strings.Compare(strings.ToLower(a), strings.ToLower(b))
	})
	var versions []string
	for _, name := range names {
		versions = append(versions, name+" "+run.Versions[name])
	}
	r.printf("Versions: %s.\n\n", strings.Join(versions, ", "))
}

// writeSystems tells what each system is and what it promises, for a ratio between different promises is only half
// of the truth.
func (r *report) writeSystems() {
	r.printf("## Who is who\n\n")
	t := newTable("system", "what survives", "client", "how")
	for _, s := range r.systems {
		t.row(s.Title, s.Durability, s.Client, s.Notes)
	}
	r.printf("%s\n", t)
}

func (r *report) failures() {
	t := newTable("round", "system", "workload", "what happened")
	for _, rec := range r.rs.Records {
		if rec.Failed != "" {
			what, _, _ := strings.Cut(rec.Failed, "\n")
			t.row(fmt.Sprint(rec.Round), rec.System, workloadName(rec.Workload, rec.Clients), strings.ReplaceAll(what, "|", "/"))
		}
	}
	r.printf("## What failed\n\n")
	if t.empty() {
		r.printf("Nothing.\n")
		return
	}
	r.printf("%s", t)
}

func workloadName(workload string, clients int) string {
	if clients == 0 {
		return workload
	}
	return fmt.Sprintf("%s %d", workload, clients)
}
