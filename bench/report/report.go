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
	Name, Title, Keeps, Client, Notes string
	Floor                             bool // no lock at all: the transport alone
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
	r.head()
	for _, ours := range r.ours() {
		r.ratios(ours)
		r.aims(ours)
	}
	r.rates()
	r.costs()
	r.contended()
	r.scenes()
	r.faults()
	r.who()
	r.failures()
	return r.String(), r.plots()
}

// ours are the systems that the others are compared with.
func (r *report) ours() []System {
	return slices.DeleteFunc(slices.Clone(r.systems), func(s System) bool { return !strings.HasPrefix(s.Name, "zamok") })
}

func (r *report) theirs() []System {
	return slices.DeleteFunc(slices.Clone(r.systems), func(s System) bool { return strings.HasPrefix(s.Name, "zamok") })
}

func (r *report) say(format string, args ...any) { fmt.Fprintf(r, format, args...) }

func (r *report) head() {
	run := r.rs.Run
	r.say("# Side by side\n\n")
	r.say("Written by `make bench` from [%s](../bench/results/%s); do not edit. What the words mean and how it is\n", r.source, r.source)
	r.say("measured stands in [bench/doc.go](../bench/doc.go). Where the time goes: [performance](performance.md).\n\n")
	r.say("Measured %s: %d cores (%s), %s of memory, Linux %s, %s.\n", run.Begun, run.Cores, run.Machine, run.Memory, run.Kernel, run.Disk)
	r.say("Servers and clients share the machine, and all nodes of a system share its disk. A figure is the median of %d\n", run.Rounds)
	r.say("rounds, a rate over %g s in each, with the least and the greatest in brackets; a ratio is taken within a round.\n", run.Seconds)
	r.say("Read the ratios: they carry over to another machine, the numbers do not.\n\n")
	names := slices.SortedFunc(maps.Keys(run.Versions), func(a, b string) int {
		return strings.Compare(strings.ToLower(a), strings.ToLower(b))
	})
	var versions []string
	for _, name := range names {
		versions = append(versions, name+" "+run.Versions[name])
	}
	r.say("Versions: %s.\n\n", strings.Join(versions, ", "))
}

// who tells what each system is and what it promises, for a ratio between different promises is only half
// of the truth.
func (r *report) who() {
	r.say("## Who is who\n\n")
	t := newTable("system", "what survives", "client", "how")
	for _, s := range r.systems {
		t.row(s.Title, s.Keeps, s.Client, s.Notes)
	}
	r.say("%s\n", t)
}

func (r *report) failures() {
	t := newTable("round", "system", "workload", "what happened")
	for _, rec := range r.rs.Records {
		if rec.Failed != "" {
			what, _, _ := strings.Cut(rec.Failed, "\n")
			t.row(fmt.Sprint(rec.Round), rec.System, workloadName(rec.Workload, rec.Clients), strings.ReplaceAll(what, "|", "/"))
		}
	}
	r.say("## What failed\n\n")
	if t.empty() {
		r.say("Nothing.\n")
		return
	}
	r.say("%s", t)
}

func workloadName(workload string, clients int) string {
	if clients == 0 {
		return workload
	}
	return fmt.Sprintf("%s %d", workload, clients)
}
