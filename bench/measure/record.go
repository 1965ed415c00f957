package measure

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
)

// Run is the head of a file of results: the machine, the versions and the settings.
type Run struct {
	Begun    string            `json:"begun"`
	Machine  string            `json:"machine"`
	Cores    int               `json:"cores"`
	Memory   string            `json:"memory"`
	Kernel   string            `json:"kernel"`
	Disk     string            `json:"disk"`
	Versions map[string]string `json:"versions"`
	Rounds   int               `json:"rounds"`
	Seconds  float64           `json:"seconds"`
}

// Record is one workload on one system in one round.
type Record struct {
	Round    int                `json:"round"`
	System   string             `json:"system"`
	Workload string             `json:"workload"`
	Clients  int                `json:"clients,omitempty"` // or waiters, or percent of the capacity
	Values   map[string]float64 `json:"values,omitempty"`
	Spans    []Span             `json:"spans,omitempty"` // timeline only
	Failed   string             `json:"failed,omitempty"`
}

// WorkloadName names a workload in reports, with its number of clients if there is one.
func WorkloadName(workload string, clients int) string {
	if clients == 0 {
		return workload
	}
	return fmt.Sprintf("%s %d", workload, clients)
}

// Span is one thread's hold of the lock, in milliseconds since the workload began.
type Span struct {
	Thread int     `json:"thread"`
	From   float64 `json:"from"`
	To     float64 `json:"to"`
}

// Line is one line of a file of results: a JSON document with one of the two.
type Line struct {
	Run    *Run    `json:"run,omitempty"`
	Record *Record `json:"record,omitempty"`
}

// Results is the content of a file of results.
type Results struct {
	Run     Run
	Records []Record
}

// Read reads a file of results.
func Read(r io.Reader) (Results, error) {
	var all Results
	found := false
	lines := json.NewDecoder(r)
	for n := 1; ; n++ {
		var l Line
		err := lines.Decode(&l)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return Results{}, fmt.Errorf("line %d: %w", n, err)
		}
		switch {
		case l.Run != nil:
			all.Run, found = *l.Run, true
		case l.Record != nil:
			all.Records = append(all.Records, *l.Record)
		}
	}
	if !found {
		return Results{}, errors.New("no line describes the run")
	}
	return all, nil
}

// Sample is a round and a repetition within it, in which a value was measured.
type Sample struct{ Round, Repetition int }

// Values returns a value of a system and workload, by sample.
func (rs Results) Values(system, workload string, clients int, name string) map[Sample]float64 {
	found := map[Sample]float64{}
	repetitions := map[int]int{}
	for _, r := range rs.Records {
		if r.System != system || r.Workload != workload || r.Clients != clients {
			continue
		}
		sample := Sample{r.Round, repetitions[r.Round]}
		repetitions[r.Round]++
		if v, ok := r.Values[name]; ok && r.Failed == "" {
			found[sample] = v
		}
	}
	return found
}

// Summary summarizes a value of a system and workload over all samples.
func (rs Results) Summary(system, workload string, clients int, name string) Summary {
	return Summarize(slices.Collect(maps.Values(rs.Values(system, workload, clients, name))))
}

// Ratio divides a value of one system by that of another, sample by sample.
func (rs Results) Ratio(a, b, workload string, clients int, name string) Summary {
	return Ratios(rs.Values(a, workload, clients, name), rs.Values(b, workload, clients, name))
}

// Clients returns the numbers of clients with which a workload was run, in order.
func (rs Results) Clients(workload string) []int {
	found := map[int]bool{}
	for _, r := range rs.Records {
		if r.Workload == workload {
			found[r.Clients] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}
