package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"zamok/jepsen/check"
)

// verdict is the result of a run in one word.
type verdict string

// A run that is both violated and invalid is violated.
const (
	passed   verdict = "good"
	violated verdict = "violated"
	invalid  verdict = "invalid" // no violation, but the run proves less than it must
)

func verdictOf(r *check.Report) verdict {
	switch {
	case len(r.Violations) > 0:
		return violated
	case len(r.Invalid) > 0:
		return invalid
	}
	return passed
}

// epoch is one leadership.
type epoch struct {
	node *node
	term uint64
	from time.Duration
}

// runReport is what is written about a run once package check has judged it.
type runReport struct {
	*check.Report
	history *check.History
	command string // repeats the run
	epochs  []epoch
	notes   []string // what was left out, and why

	calls   []*check.Op // each once
	faults  []check.Fault
	outages []outage // the longest first
	files   []string // pictures of locks
}

const (
	contextMargin    = 2 * time.Second // around the moments that a violation names
	contextLinesMax  = 60
	picturesMax      = 3
	outagesListedMax = 10
)

// newReport checks a history, and derives the other parts of the report from it.
func newReport(h *check.History, command string) *runReport {
	r := &runReport{Report: check.Check(h), history: h, command: command, calls: h.LatestOps()}
	slices.SortStableFunc(r.calls, func(a, b *check.Op) int { return cmp.Compare(a.Call, b.Call) })
	for _, f := range r.history.Faults {
		if f.Kind != "" { // one without a kind only excuses a client of what another fault caused
			r.faults = append(r.faults, f)
		}
	}
	r.outages = findOutages(r.calls, r.faults)
	return r
}

// write writes summary.md, history.jsonl, and porcupine's picture of each lock that a violation
// names.
func (r *runReport) write(dir string) error {
	put := func(name string, fill func(io.Writer) error) error {
		file, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		return errors.Join(fill(file), file.Close())
	}
	err := put("history.jsonl", r.history.Write)
	for i, lock := range r.violatedLocks() {
		name := fmt.Sprintf("order-%d.html", i+1)
		r.files = append(r.files,
			fmt.Sprintf("[%[1]s](%[1]s): an order of the calls of lock %[2]q", name, lock))
		err = errors.Join(err, put(name,
			func(w io.Writer) error { return check.Visualize(r.history, lock, w) }))
	}
	return errors.Join(err, put("summary.md", func(w io.Writer) error {
		_, err := io.WriteString(w, r.String())
		return err
	}))
}

// String is summary.md.
func (r *runReport) String() string {
	var b strings.Builder
	printf := func(format string, args ...any) { fmt.Fprintf(&b, format, args...) }
	list := func(title string, lines []string) {
		if len(lines) > 0 {
			printf("## %s\n\n- %s\n\n", title, strings.Join(lines, "\n- "))
		}
	}
	plan := &r.history.Plan
	printf("# %s: %s\n\n", cmp.Or(plan.Name, "a run"), verdictOf(r.Report))
	printf("%v, seed %d: %d calls, %d faults, %d leaders. Repeat it: `%s`\n\n",
		round(plan.End-plan.Begin), plan.Seed, len(r.calls), len(r.faults), len(r.epochs),
		r.command)
	for _, f := range r.Violations {
		printf("## Violation of %s\n\n%s\n\n```\n%s```\n\n", f.Check, f.Text, r.context(f.Text))
	}
	list("Invalid, because", r.Invalid)
	list("Notes", r.notes)
	r.writeTables(printf)
	printf("## Checks\n\n```\n%s```\n\n%d acquisitions have an unknown outcome.\n\n", r.Report,
		r.Unresolved)
	list("Files", append(r.files,
		"[history.jsonl](history.jsonl): everything that was recorded",
		"logs/: what each process logged"))
	return b.String()
}

func (r *runReport) writeTables(printf func(string, ...any)) {
	took := map[check.OpKind][]time.Duration{}
	for _, op := range r.calls {
		if op.Outcome == check.OK {
			took[op.Kind] = append(took[op.Kind], op.Return-op.Call)
		}
	}
	printf("## Calls\n\n| call | ok | refused | unknown | p50 | p99 | longest " +
		"|\n|---|---:|---:|---:|---:|---:|---:|\n")
	for _, kind := range slices.Sorted(maps.Keys(r.Outcomes)) {
		n, t := r.Outcomes[kind], took[kind]
		if slices.Sort(t); len(t) == 0 {
			t = []time.Duration{0}
		}
		last := len(t) - 1
		printf("| %s | %d | %d | %d | %v | %v | %v |\n", kind, n[check.OK], n[check.Refused],
			n[check.Unknown],
			round(t[last/2]), round(t[last*99/100]), round(t[last]))
	}
	count, total := map[string]int{}, map[string]time.Duration{}
	for _, f := range r.faults {
		count[f.Kind]++
		total[f.Kind] += f.To - f.From
	}
	printf("\n## Faults\n\n| kind | how often | together |\n|---|---:|---:|\n")
	for _, kind := range slices.Sorted(maps.Keys(count)) {
		printf("| %s | %d | %v |\n", kind, count[kind], round(total[kind]))
	}
	printf("\n## The longest outages\n\n| from | for | during |\n|---:|---:|---|\n")
	for _, o := range r.outages[:min(len(r.outages), outagesListedMax)] {
		printf("| %v | %v | %s |\n", round(o.from-r.history.Plan.Begin), round(o.to-o.from),
			strings.Join(o.faults, ", "))
	}
	printf("\n")
}

// round rounds to three digits or so.
func round(d time.Duration) time.Duration {
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d >= unit {
			return d.Round(unit / 100)
		}
	}
	return d
}

var (
	momentPattern = regexp.MustCompile(`\b(?:at|from|to|by|before|until|between) (\d+\.\d{3})s\b`)
	lockPattern   = regexp.MustCompile(`(?:lock|resource) ("(?:[^"\\]|\\.)*")`)
	indexPattern  = regexp.MustCompile(`\bindex (\d+)`)
)

// lockOf is the lock that the sentence of a violation names; "" if it names none.
func lockOf(text string) (name string) {
	if match := lockPattern.FindStringSubmatch(text); match != nil {
		name, _ = strconv.Unquote(match[1])
	}
	return name
}

// momentsOf are the moments that the sentence of a violation names. If it names only an index, they
// are those of the events at that index.
func (r *runReport) momentsOf(text string) (all []time.Duration) {
	for _, match := range momentPattern.FindAllStringSubmatch(text, -1) {
		if at, err := time.ParseDuration(match[1] + "s"); err == nil {
			all = append(all, r.history.Plan.Begin+at)
		}
	}
	if len(all) > 0 {
		return all
	}
	for _, match := range indexPattern.FindAllStringSubmatch(text, -1) {
		for _, ev := range r.history.Events {
			if fmt.Sprint(ev.Index) == match[1] {
				all = append(all, ev.At)
			}
		}
	}
	return all
}

func (r *runReport) violatedLocks() (names []string) {
	for _, f := range r.Violations {
		known := func(op *check.Op) bool { return touches(op.Items, lockOf(f.Text)) }
		if name := lockOf(f.Text); !slices.Contains(names, name) &&
			slices.ContainsFunc(r.calls, known) {
			names = append(names, name)
		}
	}
	return names[:min(len(names), picturesMax)]
}

func touches(items []check.Item, lock string) bool {
	return slices.ContainsFunc(items, func(it check.Item) bool { return it.Name == lock })
}

// context lists what happened around the moments that a violation names: faults, leaders, and the
// calls, holds and events of the lock that it names.
func (r *runReport) context(text string) string {
	type line struct {
		at, distance time.Duration
		text         string
	}
	var lines []line
	moments, lock, begin := r.momentsOf(text), lockOf(text), r.history.Plan.Begin
	add := func(from, to time.Duration, format string, args ...any) {
		to = max(from, to)
		l := line{at: from, distance: contextMargin + 1}
		for _, at := range moments {
			l.distance = min(l.distance, max(0, from-at, at-to))
		}
		if l.distance <= contextMargin {
			l.text = fmt.Sprintf("%9.3fs %9.3fs  ", (from-begin).Seconds(), (to-begin).Seconds()) +
				fmt.Sprintf(format, args...)
			lines = append(lines, l)
		}
	}
	for _, f := range r.faults {
		add(f.From, f.To, "FAULT %s: %s", f.Kind, f.Target)
	}
	for _, e := range r.epochs {
		add(e.from, e.from, "LEADER %s, term %d", e.node.id, e.term)
	}
	for _, op := range r.calls {
		if touches(op.Items, lock) {
			add(op.Call, op.Return, "%s: %s %s, ticket %v, token %d, %s",
				op.Client, op.Kind, op.Outcome, op.Ref, op.Token, op.Error)
		}
	}
	held := map[check.Ref]bool{}
	for _, b := range r.history.LatestHolds() {
		if touches(b.Items, lock) {
			held[b.Ref] = true
			add(b.From, b.To, "%s: held, ticket %v, token %d, %s %s",
				b.Client, b.Ref, b.Token, b.End, b.Reason)
		}
	}
	for _, ev := range r.history.Events {
		if touches(ev.Items, lock) || held[ev.Ref] {
			add(ev.At, ev.At, "%s: %s at index %d, ticket %v, token %d, %s",
				ev.Node, ev.Kind, ev.Index, ev.Ref, ev.Token, ev.Reason)
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.distance, b.distance) })
	lines = lines[:min(len(lines), contextLinesMax)]
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.at, b.at) })
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintln(&b, l.text)
	}
	return b.String()
}

// recheck checks recorded histories again; several files are one run, as several processes recorded
// it. With a directory, it writes the report there.
func recheck(dir string, files []string) (verdict, error) {
	if len(files) == 0 {
		return "", errors.New("name the files of a history")
	}
	h, err := readHistory(files)
	if err != nil {
		return "", err
	}
	r := newReport(h, "jepsen-real -recheck "+strings.Join(files, " "))
	fmt.Print(r.Report)
	if dir != "" {
		err = errors.Join(os.MkdirAll(dir, 0o755), r.write(dir))
	}
	return verdictOf(r.Report), err
}

func readHistory(files []string) (*check.History, error) {
	h := &check.History{}
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		err = h.Read(file)
		file.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return h, nil
}

const (
	outageMin = 200 * time.Millisecond // shorter gaps are normal between two calls
	// an outage this soon after a fault may still be its effect
	faultTailMax = 5 * time.Second
)

// outage is a time in which no call of the prober succeeded.
type outage struct {
	from, to time.Duration
	faults   []string // kinds of the faults at that time, or else shortly before
}

// findOutages finds the gaps between successful answers to the prober. calls are in order of Call.
func findOutages(calls []*check.Op, faults []check.Fault) (all []outage) {
	calls = slices.DeleteFunc(slices.Clone(calls),
		func(op *check.Op) bool { return op.Client != prober })
	var last time.Duration // the latest answer
	for i, op := range calls {
		if i == 0 {
			last = op.Call
		}
		end := op.Outcome == check.OK || i == len(calls)-1 // no call follows the last one
		if at := max(op.Call, op.Return); end && at-last > outageMin {
			all = append(all, outage{last, at, kindsDuring(faults, last, at)})
		}
		if op.Outcome == check.OK {
			last = op.Return
		}
	}
	slices.SortStableFunc(all,
		func(a, b outage) int { return cmp.Compare(b.to-b.from, a.to-a.from) })
	return all
}

func kindsDuring(faults []check.Fault, from, to time.Duration) []string {
	for _, tail := range []time.Duration{0, faultTailMax} {
		var kinds []string
		for _, f := range faults {
			if f.From <= to && f.To >= from-tail {
				kinds = append(kinds, f.Kind)
			}
		}
		if len(kinds) > 0 {
			slices.Sort(kinds)
			return slices.Compact(kinds)
		}
	}
	return []string{"(no fault)"}
}
