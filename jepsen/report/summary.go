package report

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"zamok/jepsen/check"
)

// Verdict is the run in one word.
type Verdict string

// The verdicts. A run that is both violated and invalid is violated.
const (
	Passed   Verdict = "good"
	Violated Verdict = "violated"
	Invalid  Verdict = "invalid" // nothing broke, and the run proves less than it was to prove
)

// VerdictOf is a report in one word.
func VerdictOf(r *check.Report) Verdict {
	switch {
	case len(r.Violations) > 0:
		return Violated
	case len(r.Invalid) > 0:
		return Invalid
	}
	return Passed
}

// Summary is what happened, in numbers. Moments are counted from the beginning of the run.
type Summary struct {
	Name               string                                 `json:"name"`
	Verdict            Verdict                                `json:"verdict"`
	Violations         []check.Finding                        `json:"violations,omitempty"`
	Invalid            []string                               `json:"invalid,omitempty"`
	Notes              []string                               `json:"notes,omitempty"`
	Seed               uint64                                 `json:"seed"`
	Command            string                                 `json:"command"`
	Duration           time.Duration                          `json:"duration_ns"`
	Healed             time.Duration                          `json:"healed_ns"` // when the faults were over
	Operations         int                                    `json:"operations"`
	Outcomes           map[check.Outcome]int                  `json:"outcomes"`
	Calls              map[check.OpKind]map[check.Outcome]int `json:"calls"`
	Latencies          []Latency                              `json:"latencies"`
	FaultCount         int                                    `json:"fault_count"`
	Faults             []FaultKind                            `json:"faults"`
	Outages            []Outage                               `json:"longest_outages"` // the longest first
	LeaderChanges      int                                    `json:"leader_changes"`
	EpochsInferred     bool                                   `json:"leader_changes_inferred,omitempty"`
	ClusterTimeStalled time.Duration                          `json:"cluster_time_stalled_ns"`
	Clients            int                                    `json:"clients"`
	ClientsDied        int                                    `json:"clients_died"`
	Sessions           int                                    `json:"sessions"`
	Locks              int                                    `json:"locks"`
	Holds              int                                    `json:"holds"`
	HoldsLost          int                                    `json:"holds_lost"`
	WritesAccepted     int                                    `json:"writes_accepted"`
	WritesRejected     int                                    `json:"writes_refused"`
	Events             int                                    `json:"events"`
	Examined           map[string]int                         `json:"examined"`
	Unresolved         int                                    `json:"unresolved"`
	Files              []File                                 `json:"files"`

	checkText string
}

// FaultKind is all that was done of one kind.
type FaultKind struct {
	Kind          string        `json:"kind"`
	Count         int           `json:"count"`
	Duration      time.Duration `json:"duration_ns"` // together
	Outages       int           `json:"outages"`
	LongestOutage time.Duration `json:"longest_outage_ns"`
}

// Latency is how long calls took that were answered with ok.
type Latency struct {
	Operation string        `json:"of"`
	Count     int           `json:"count"`
	P50       time.Duration `json:"p50_ns"`
	P99       time.Duration `json:"p99_ns"`
	Max       time.Duration `json:"max_ns"`
}

// File is a file of the directory.
type File struct {
	Name        string `json:"name"`
	Description string `json:"what"`
}

const outagesShownMax = 10

func (d *analysis) summary() *Summary {
	h, r := d.History, d.Report
	s := &Summary{
		Name: cmp.Or(h.Plan.Name, "a run"), Verdict: VerdictOf(r), Violations: r.Violations, Invalid: r.Invalid, Notes: d.Notes,
		Seed: h.Plan.Seed, Command: d.Command, Duration: d.end - d.begin, Healed: max(0, h.Plan.Healed-d.begin),
		Operations: len(d.calls), Outcomes: map[check.Outcome]int{}, Calls: r.Outcomes, Latencies: d.latencies(),
		FaultCount: len(d.faults), Faults: d.faultKinds(), Outages: d.outages[:min(len(d.outages), outagesShownMax)],
		LeaderChanges: max(0, len(d.epochs)-1), EpochsInferred: len(d.Epochs) == 0,
		Sessions: len(h.Sessions), Locks: len(d.locks), Holds: len(d.holds), Events: len(h.Events),
		Examined: r.Examined, Unresolved: r.Unresolved, checkText: r.String(),
	}
	clients, dead := map[string]bool{}, map[string]bool{}
	for _, op := range d.calls {
		s.Outcomes[op.Outcome]++
		clients[op.Client] = true
	}
	for _, x := range h.Sessions {
		if x.Died != 0 {
			dead[x.Client] = true
		}
	}
	s.Clients, s.ClientsDied = len(clients), len(dead)
	for _, b := range d.holds {
		if b.End == check.Lost {
			s.HoldsLost++
		}
	}
	for _, w := range h.Writes {
		if w.Accepted {
			s.WritesAccepted++
		} else {
			s.WritesRejected++
		}
	}
	for _, x := range h.Stalls {
		s.ClusterTimeStalled += x.LostTime
	}
	return s
}

// faultKinds counts faults and the outages beside them, by kind. What happened without a fault comes last.
func (d *analysis) faultKinds() []FaultKind {
	kinds := map[string]*FaultKind{}
	of := func(kind string) *FaultKind {
		if kinds[kind] == nil {
			kinds[kind] = &FaultKind{Kind: kind}
		}
		return kinds[kind]
	}
	for _, f := range d.faults {
		k := of(f.Kind)
		k.Count++
		k.Duration += f.To - f.From
	}
	for i := range d.outages {
		o := &d.outages[i]
		for _, kind := range o.Kinds {
			of(kind).Outages++
		}
		for _, f := range o.faults {
			k := of(f.Kind)
			k.LongestOutage = max(k.LongestOutage, d.attributedTo(o, f))
		}
		if len(o.faults) == 0 {
			k := of(noFault)
			k.LongestOutage = max(k.LongestOutage, o.Duration)
		}
	}
	last := kinds[noFault]
	delete(kinds, noFault)
	var all []FaultKind
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		all = append(all, *kinds[kind])
	}
	if last != nil {
		all = append(all, *last)
	}
	return all
}

// What calls are told of together.
const (
	latencyImmediate = "lock, granted at once"
	latencyQueued    = "lock, granted after a wait"
	latencyRelease   = "unlock"
	latencyRead      = "reads"
)

// latencyClass says with which others a call's time is told; "" with none.
func latencyClass(op *check.Op) string {
	switch {
	case op.Outcome != check.OK:
		return ""
	case op.Kind == check.OpLock && op.Queued != 0:
		return latencyQueued
	case op.Kind == check.OpLock || op.Kind == check.OpTryLock:
		return latencyImmediate
	case op.Kind == check.OpUnlock:
		return latencyRelease
	case op.Kind == check.OpGet || op.Kind == check.OpCheck || op.Kind == check.OpNow:
		return latencyRead
	}
	return ""
}

func (d *analysis) latencies() []Latency {
	took := map[string][]time.Duration{}
	for _, op := range d.calls {
		if of := latencyClass(op); of != "" {
			took[of] = append(took[of], op.Return-op.Call)
		}
	}
	var all []Latency
	for _, of := range []string{latencyImmediate, latencyQueued, latencyRelease, latencyRead} {
		if t := took[of]; len(t) > 0 {
			slices.Sort(t)
			all = append(all, Latency{of, len(t), rank(t, 50), rank(t, 99), t[len(t)-1]})
		}
	}
	return all
}

// rank is the least that so many of a hundred do not exceed.
func rank[T any](sorted []T, percent int) T {
	return sorted[max(0, (len(sorted)*percent+99)/100-1)]
}
