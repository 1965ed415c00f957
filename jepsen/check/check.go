package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// findingsMax is how many findings of a check are listed: the first ones are those that explain.
const findingsMax = 20

// searchTimeout bounds each search for an order of a lock's calls. A search that exceeds it makes
// the run invalid. Other searches take seconds at most; the rest is for a busy machine. In a bubble
// of testing/synctest there is no bound: time stands there while anything computes.
const searchTimeout = 2 * time.Minute

// Finding is one violation, in words.
type Finding struct {
	Check string `json:"check"`
	Text  string `json:"text"`
}

func (f Finding) String() string { return f.Check + ": " + f.Text }

// Report is what the checks found.
type Report struct {
	// Violations are promises that were broken.
	Violations []Finding `json:"violations,omitempty"`
	// Invalid lists why the run proves less than its plan requires. Such a run fails too.
	Invalid []string `json:"invalid,omitempty"`
	// Examined is how many things each check looked at. One that looked at nothing is no proof.
	Examined map[string]int `json:"examined"`
	// Outcomes counts calls by kind and outcome.
	Outcomes map[OpKind]map[Outcome]int `json:"outcomes"`
	// Unresolved counts acquisitions whose outcome is not known in the end.
	Unresolved int `json:"unresolved"`
}

// OK reports whether the run was valid and nothing is wrong with it.
func (r *Report) OK() bool { return len(r.Violations) == 0 && len(r.Invalid) == 0 }

func (r *Report) String() string {
	var b strings.Builder
	b.WriteString(r.findings())
	for _, c := range checks() {
		fmt.Fprintf(&b, "%-4s %-60s looked at %d\n", c.id, c.title, r.Examined[c.id])
	}
	return b.String()
}

// findings are the violations, and why the run is invalid, one a line.
func (r *Report) findings() string {
	var b strings.Builder
	for _, f := range r.Violations {
		fmt.Fprintln(&b, f)
	}
	for _, reason := range r.Invalid {
		fmt.Fprintln(&b, "invalid run:", reason)
	}
	return b.String()
}

// checkSpec is one of the checks of the package comment.
type checkSpec struct {
	id    string
	title string
	run   func(*checker)
}

func checks() []checkSpec {
	return []checkSpec{
		{"C1", "operations on each lock are linearizable", checkLinearizability},
		{"C2", "no two clients hold conflicting locks", checkHoldExclusion},
		{"C3", "fenced resources accept no stale token", checkFencing},
		{"C4", "tokens and stamps are monotonic", checkMonotonic},
		{"C5", "locks are granted in FIFO order", checkFIFO},
		{"C6", "no lease expires early", checkLeases},
		{"C7", "sessions of dead clients expire in time", checkExpirations},
		{"C8", "a loss is reported before the next grant", checkLossBeforeGrant},
		{"C9", "a lost lock is never held again", checkLostIsFinal},
		{"C10", "each ticket is granted and ended at most once", checkExactlyOnce},
		{"C11", "outcomes agree with the log", checkOutcomes},
		{"C12", "every call returns", checkCompletion},
		{"C13", "reads agree with the log at their index", checkReads},
		{"C14", "cluster time is never fast", checkClusterTime},
		{"C15", "equal digests at equal indexes", checkDigests},
		{"C16", "conflicting grants in the log do not overlap", checkLogExclusion},
		{"C17", "no resource count grows", checkGrowth},
	}
}

// Check runs every check over a history.
func Check(h *History) *Report { return checkWithin(h, searchTimeout) }

func checkWithin(h *History, timeout time.Duration) *Report {
	r := &Report{Examined: map[string]int{}, Outcomes: map[OpKind]map[Outcome]int{}}
	v := newHistoryIndex(h)
	for _, op := range v.ops {
		if r.Outcomes[op.Kind] == nil {
			r.Outcomes[op.Kind] = map[Outcome]int{}
		}
		r.Outcomes[op.Kind][op.Outcome]++
	}
	for _, c := range checks() {
		f := &checker{historyIndex: v, timeout: timeout, chunkMin: chunkMin, report: r, id: c.id}
		c.run(f)
		if more := f.found - findingsMax; more > 0 {
			r.Violations = append(r.Violations, Finding{c.id, fmt.Sprintf("… and %d more", more)})
		}
		r.Examined[c.id] = f.examined
	}
	checkValidity(&checker{historyIndex: v, report: r})
	return r
}

// checker is what one check works with.
type checker struct {
	*historyIndex
	timeout  time.Duration // of each search for an order
	chunkMin int           // the least number of steps that are searched together
	report   *Report
	id       string
	found    int // violations, also those that are not listed
	examined int
}

// violationf records a violation.
func (f *checker) violationf(format string, args ...any) {
	if f.found++; f.found <= findingsMax {
		f.report.Violations = append(f.report.Violations,
			Finding{f.id, fmt.Sprintf(format, args...)})
	}
}

// invalidf records why the run proves less than it should, each reason once.
func (f *checker) invalidf(format string, args ...any) {
	if len(f.report.Invalid) == 2*findingsMax {
		return
	}
	if reason := fmt.Sprintf(format, args...); !slices.Contains(f.report.Invalid, reason) {
		f.report.Invalid = append(f.report.Invalid, reason)
	}
}

// checkGrowth looks for counts that are greater at rest after the load than before it.
func checkGrowth(f *checker) {
	before := map[string]map[string]int64{}
	for _, r := range f.IdleCounts {
		if !r.AfterLoad {
			before[r.Process] = r.Counts
		}
	}
	for _, r := range f.IdleCounts {
		for _, counter := range slices.Sorted(maps.Keys(r.Counts)) {
			baseline, known := before[r.Process][counter]
			if !r.AfterLoad || !known {
				continue
			}
			f.examined++
			if is := r.Counts[counter]; is > baseline {
				f.violationf("%s had %d %s at rest before the load and has %d after it",
					r.Process, baseline, counter, is)
			}
		}
	}
}

// checkValidity checks that the run had what its plan requires: a run without load or faults passes
// every other check and proves nothing.
func checkValidity(f *checker) {
	p := &f.Plan
	if p.End == 0 {
		f.invalidf("its plan has no end, so the record may be cut short")
	}
	succeeded := 0
	for _, outcomes := range f.report.Outcomes {
		succeeded += outcomes[OK]
	}
	if succeeded < p.OKMin {
		f.invalidf("the load was too low: %d operations succeeded, and the plan requires %d",
			succeeded, p.OKMin)
	}
	for _, kind := range p.Faults {
		if !slices.ContainsFunc(f.Faults, func(x Fault) bool { return x.Kind == kind }) {
			f.invalidf("the plan requires the fault %q, which never happened", kind)
		}
	}
	for _, id := range p.Checks {
		if f.report.Examined[id] == 0 {
			f.invalidf("the plan requires %s, which had nothing to look at", id)
		}
	}
	f.checkOps()
	if killed := len(f.diedAt); f.TruncatedLines > killed {
		f.invalidf("%d lines of the record are torn, and %d clients died", f.TruncatedLines, killed)
	}
}

// checkOps checks that calls are recorded as the package comment says, that the last calls of
// living clients were answered, and that a lock was granted after the healing.
func (f *checker) checkOps() {
	last, granted, withoutHold := map[string]*Op{}, false, 0
	for _, op := range f.ops {
		known, acquired := op.Outcome == OK || op.Outcome == Refused,
			op.acquires() && op.Outcome == OK
		switch {
		case !known && op.Outcome != Unknown:
			f.invalidf("a call of %s has the outcome %q: ok, refused or unknown are allowed",
				op.Client, op.Outcome)
		case known && op.Return == 0 || op.Return != 0 && op.Return < op.Call:
			f.invalidf("a call of %s was made at %s and is said to have come back at %s", op.Client,
				f.formatTime(op.Call), f.formatTime(op.Return))
		case acquired && (op.Token == 0 || len(op.Items) == 0):
			f.invalidf("a grant to %s at %s has no token or no items", op.Client,
				f.formatTime(op.Return))
		}
		if before := last[op.Client]; before == nil || op.Call >= before.Call {
			last[op.Client] = op
		}
		granted = granted || acquired && op.Call > f.Plan.Healed
		if t := f.tickets[op.Ref]; acquired && (t == nil || t.hold == nil) {
			withoutHold++
		}
	}
	if !granted {
		f.invalidf("no lock was granted after the healing")
	}
	if withoutHold > 0 {
		f.invalidf("%d grants have no record of how long they were held", withoutHold)
	}
	for _, client := range slices.Sorted(maps.Keys(last)) {
		if op := last[client]; f.diedAt[client] == 0 && op.Outcome == Unknown {
			f.invalidf("the last call of %s, %s at %s, did not succeed: %s",
				client, op.Kind, f.formatTime(op.Call), cmp.Or(op.Error, "no answer"))
		}
	}
}
