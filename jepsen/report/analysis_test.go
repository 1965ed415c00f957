package report

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/jepsen/check"
)

// probeCalls makes a prober's calls: one each 50 ms, answered after 2 ms, but for those of which failing says how
// long they take to fail.
func probeCalls(client string, to time.Duration, failing func(at time.Duration) time.Duration) (ops []check.Op) {
	for at := second; at < to; {
		op := check.Op{Client: client, Kind: check.OpNow, Call: at, Return: at + 2*time.Millisecond, Outcome: check.OK}
		if takes := failing(at); takes > 0 {
			op.Outcome, op.Return = check.Unknown, at+takes
		}
		ops = append(ops, op)
		at = op.Return + 48*time.Millisecond
	}
	return ops
}

func TestOutages(t *testing.T) {
	between := func(from, to time.Duration) func(time.Duration) time.Duration {
		return func(at time.Duration) time.Duration {
			if at >= from && at < to {
				return 300 * time.Millisecond
			}
			return 0
		}
	}
	h := &check.History{Plan: check.Plan{Begin: second, End: 61 * second}}
	h.Ops = append(probeCalls("a", 40*second, between(10*second, 13*second)), probeCalls("b", 40*second, between(10*second, 11*second))...)
	h.Ops = append(h.Ops, probeCalls("b", 60*second, func(at time.Duration) time.Duration { return second })...)
	h.Faults = []check.Fault{
		{Kind: "kill", From: 9900 * time.Millisecond, To: 9900 * time.Millisecond}, {Kind: "cut", From: 12 * second, To: 20 * second},
		{Kind: "slow", From: 5 * second, To: 6 * second},
	}
	of := func(probers ...string) []Outage {
		return newAnalysis(Run{History: h, Report: &check.Report{}, Probers: probers}).outages
	}
	near := func(want, got time.Duration) { t.Helper(); assert.InDelta(t, want.Seconds(), got.Seconds(), 0.7) }

	a := of("a")
	require.Len(t, a, 1, "where nobody asks there is no outage: %v", a)
	near(9*second, a[0].From)
	near(3*second, a[0].Duration)
	assert.Equal(t, []string{"cut", "kill", "slow"}, a[0].Kinds, "none was under way when it began")

	assert.Len(t, of("a", "b"), 3)
	all := of()
	require.Len(t, all, 2, "%v", all)
	near(39*second, all[0].From)
	near(20*second, all[0].Duration)
	assert.Equal(t, []string{noFault}, all[0].Kinds)
	near(second, all[1].Duration)
	assert.Equal(t, []string{"kill", "slow"}, all[1].Kinds, "what had ended shortly before, if nothing was under way")

	s := newAnalysis(Run{History: h, Report: &check.Report{}, Probers: []string{"a"}}).summary()
	assert.Equal(t, []FaultKind{
		{Kind: "cut", Count: 1, Duration: 8 * second, Outages: 1, LongestOutage: a[0].From + a[0].Duration - 11*second},
		{Kind: "kill", Count: 1, Outages: 1, LongestOutage: a[0].Duration},
		{Kind: "slow", Count: 1, Duration: second, Outages: 1, LongestOutage: a[0].Duration},
	}, s.Faults)
	h.Faults[0].To = 11 * second // it was under way: what had ended is no matter
	assert.Equal(t, []string{"cut", "kill"}, of("a")[0].Kinds)

	h.Faults = []check.Fault{{Kind: "late", From: 50 * second, To: 51 * second}} // it had not brought the outage about
	s = newAnalysis(Run{History: h, Report: &check.Report{}, Probers: []string{"b"}}).summary()
	assert.Equal(t, FaultKind{Kind: "late", Count: 1, Duration: second, Outages: 1, LongestOutage: second + faultTailMax}, s.Faults[0])
}

// Who waits for a lock waits for another client, and its wait is no outage.
func TestQueuedCallsAreNotAnOutage(t *testing.T) {
	lock := check.Op{
		Client: "a", Kind: check.OpLock, Items: []check.Item{{Name: "x"}}, Call: 2 * second, Return: 9 * second, Outcome: check.OK,
	}
	h := &check.History{Plan: check.Plan{Begin: second, End: 10 * second}, Ops: []check.Op{lock}}
	find := func() int { return len(newAnalysis(Run{History: h, Report: &check.Report{}}).outages) }
	assert.Equal(t, 1, find())
	h.Ops[0].Queued = 3 * second
	assert.Zero(t, find())
	h.Ops[0].Queued, h.Ops[0].Outcome = 0, check.Unknown // whether it waited is not known
	assert.Zero(t, find())
}

// The moments of a violation are read out of its sentence. Whoever rewrites the sentences of package check
// sees here whether they are still read.
func TestViolationsHighlighted(t *testing.T) {
	h := sampleRun(testSeed(t), 300, names("lock-", 2), names("c", 4))
	var first, second *check.Hold // of one lock, one after the other
	for i := range h.Holds {
		if b := &h.Holds[i]; i > 100 && b.Items[0].Name == "lock-1" {
			if first, second = second, b; first != nil {
				break
			}
		}
	}
	require.NotNil(t, first)
	first.To = second.From + 5*time.Millisecond
	r := check.Check(h, check.Limits{})
	require.NotEmpty(t, r.Violations)
	d := newAnalysis(Run{History: h, Report: r})
	require.Len(t, d.violations, len(r.Violations))
	for _, m := range d.violations {
		assert.Equal(t, "lock-1", m.lock, m.Text)
		require.NotEmpty(t, m.at, m.Text)
		assert.InDelta(t, second.From.Seconds(), m.at[len(m.at)-1].Seconds(), 0.05, m.Text)
	}
	assert.Equal(t, []string{"lock-1"}, d.locksToVisualize())
	require.Equal(t, "lock-1", d.busiest(2)[0].name)

	// With little room the two that matter still have bars of their own, one beneath the other.
	drawn := d.timeline(20).Locks[0]
	assert.EqualValues(t, 2, drawn.Lanes)
	assert.EqualValues(t, drawn.Holds, holdsDrawn(drawn))
}

func TestMomentsInFindings(t *testing.T) {
	for text, want := range map[string]string{
		`two believed for 1.234s: a from 2.000s to 3.500s`:      "[2s 3.5s]",
		`the term was 3 at index 7 (n1), and is 2 at index 8`:   "[41s 42s]",
		`it ended at 4.000s only, 7.250s later`:                 "[4s]",
		`what it sent at 0.001s was answered, with a ttl of 5s`: "[1ms]",
		`nothing is said of when`:                               "[]",
	} {
		h := &check.History{Events: []check.Event{{Index: 7, At: 41 * second}, {Index: 8, At: 43 * second}, {Index: 8, At: 42 * second}}}
		r := &check.Report{Violations: []check.Finding{{Check: "C1", Text: text}}}
		assert.Equal(t, want, fmt.Sprint(newAnalysis(Run{History: h, Report: r}).violations[0].at), text)
	}
}

// Epochs end where the next one begins, if nobody says when.
func TestEpochs(t *testing.T) {
	h := &check.History{Plan: check.Plan{Begin: second, End: 9 * second}}
	offices := []Epoch{{Node: "n2", From: 5 * second}, {Node: "n1", From: second}}
	d := newAnalysis(Run{History: h, Report: &check.Report{}, Epochs: offices})
	assert.Equal(t, []Epoch{{"n1", 0, second, 5 * second}, {"n2", 0, 5 * second, 9 * second}}, d.epochs)
	assert.Equal(t, 1, d.summary().LeaderChanges)
}

// So many wait at once, within each piece of time, also where nobody comes or goes.
func TestQueueDepth(t *testing.T) {
	const tenth = second / 10
	wait := func(from, to time.Duration) check.Op {
		items := []check.Item{{Name: "x"}}
		return check.Op{Client: fmt.Sprint(from), Kind: check.OpLock, Items: items, Call: from, Return: to, Outcome: check.OK}
	}
	h := &check.History{Plan: check.Plan{Begin: second, End: 4 * second}}
	h.Ops = []check.Op{wait(15*tenth, 30*tenth+1), wait(22*tenth, 23*tenth), wait(23*tenth, 23*tenth+1)}
	h.Holds = []check.Hold{{Client: "1.5s", Items: []check.Item{{Name: "x"}}, From: 3 * second}}
	depth := newAnalysis(Run{History: h, Report: &check.Report{}}).timeline(10).Locks[0].Depth
	assert.Equal(t, []int{0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, depth)
}
