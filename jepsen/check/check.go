package check

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// toldMax is how many findings a check tells in words: the first ones are those that explain.
const toldMax = 20

// Limits bound the checking itself; the zero value means the defaults.
type Limits struct {
	// Linear bounds each search for an order of a lock's calls; 0 = 2 min. A search that does not end
	// makes the run invalid. In a bubble of testing/synctest there is no bound: time stands there
	// while anything computes.
	Linear time.Duration
	// Slack is how late the dead may be freed beyond their bound; 0 = 1 s.
	Slack time.Duration
	// Growth is, by name of a count, by how much it may have grown at rest.
	Growth map[string]int64

	chunk int // so many steps are searched together at least; 0 = chunkMin
}

// linearMost is long for a search that ends at all, which takes seconds at most: time passes here on a machine
// that has other things to do, too.
const linearMost = 2 * time.Minute

// Finding is one thing that must not be.
type Finding struct {
	Check string `json:"check"`
	Text  string `json:"text"`
}

func (f Finding) String() string { return f.Check + ": " + f.Text }

// Report is what the checks found.
type Report struct {
	// Violations are promises that were broken.
	Violations []Finding `json:"violations,omitempty"`
	// Invalid says why the run proves less than it was to prove. It fails too.
	Invalid []string `json:"invalid,omitempty"`
	// Looked is how many things each check looked at. One that looked at nothing proved nothing.
	Looked map[string]int `json:"examined"`
	// Outcomes counts calls by kind and outcome.
	Outcomes map[Kind]map[Outcome]int `json:"outcomes"`
	// Unresolved counts acquisitions of which nobody knows what became of them.
	Unresolved int `json:"unresolved"`
}

// OK says that the run was valid and nothing is wrong with it.
func (r *Report) OK() bool { return len(r.Violations) == 0 && len(r.Invalid) == 0 }

func (r *Report) String() string {
	var b strings.Builder
	for _, f := range r.Violations {
		fmt.Fprintln(&b, f)
	}
	for _, why := range r.Invalid {
		fmt.Fprintln(&b, "invalid run:", why)
	}
	for _, c := range checks() {
		fmt.Fprintf(&b, "%-4s %-60s looked at %d\n", c.id, c.what, r.Looked[c.id])
	}
	return b.String()
}

// check is one of the checks of the manual.
type check struct {
	id   string
	what string
	run  func(*finder)
}

func checks() []check {
	return []check{
		{"C1", "operations on each lock are linearizable", linear},
		{"C2", "no two clients hold conflicting locks", beliefs},
		{"C3", "fenced resources accept no stale token", fenced},
		{"C4", "tokens and stamps are monotonic", rising},
		{"C5", "locks are granted in FIFO order", fifo},
		{"C6", "no lease expires early", leases},
		{"C7", "sessions of dead clients expire in time", deaths},
		{"C8", "a loss is reported before the next grant", toldFirst},
		{"C9", "a lost lock is never held again", final},
		{"C10", "each ticket is granted and ended at most once", once},
		{"C11", "outcomes agree with the log", effects},
		{"C12", "every call returns", waits},
		{"C13", "reads agree with the log at their index", reads},
		{"C14", "cluster time is never fast", clocks},
		{"C15", "equal digests at equal indexes", digests},
		{"C16", "conflicting grants in the log do not overlap", excludes},
		{"C17", "no resource count grows", growth},
	}
}

// Check runs every check over a history.
func Check(h *History, limits Limits) *Report {
	limits.Linear = orElse(limits.Linear, linearMost)
	limits.Slack = orElse(limits.Slack, time.Second)
	limits.chunk = orElse(limits.chunk, chunkMin)
	r := &Report{Looked: map[string]int{}, Outcomes: map[Kind]map[Outcome]int{}}
	v := newView(h)
	for _, op := range v.ops {
		if r.Outcomes[op.Kind] == nil {
			r.Outcomes[op.Kind] = map[Outcome]int{}
		}
		r.Outcomes[op.Kind][op.Outcome]++
	}
	for _, c := range checks() {
		f := &finder{view: v, limits: limits, report: r, id: c.id}
		c.run(f)
		if f.more > 0 {
			r.Violations = append(r.Violations, Finding{c.id, fmt.Sprintf("… and %d more", f.more)})
		}
		r.Looked[c.id] = f.looked
	}
	valid(&finder{view: v, limits: limits, report: r})
	return r
}

func orElse[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

// finder is what one check works with.
type finder struct {
	*view
	limits Limits
	report *Report
	id     string
	told   int
	more   int
	looked int
}

// wrong takes down a violation.
func (f *finder) wrong(format string, args ...any) {
	if f.told == toldMax {
		f.more++
		return
	}
	f.told++
	f.report.Violations = append(f.report.Violations, Finding{f.id, fmt.Sprintf(format, args...)})
}

// invalid takes down why the run proves less than it should, once for each why.
func (f *finder) invalid(format string, args ...any) {
	if len(f.report.Invalid) == 2*toldMax {
		return
	}
	if why := fmt.Sprintf(format, args...); !slices.Contains(f.report.Invalid, why) {
		f.report.Invalid = append(f.report.Invalid, why)
	}
}
