package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/jepsen/check"
)

const second = time.Second

// An outage lasts from the last answer to the next one, and names the faults beside it.
func TestOutages(t *testing.T) {
	var calls []*check.Op
	probe := func(call, back time.Duration, outcome check.Outcome) {
		calls = append(calls, &check.Op{Client: prober, Kind: check.OpLock, Call: call, Return: back,
			Outcome: outcome})
	}
	probe(1*second, 1*second+1, check.OK)
	probe(2*second, 3*second, check.Unknown)
	probe(3*second, 4*second, check.OK) // during a fault
	probe(4*second+1, 6*second, check.OK)
	calls = append(calls, &check.Op{Client: "another", Call: 6 * second, Return: 99 * second, Outcome: check.OK})
	probe(6*second+1, 6*second+2, check.OK)
	probe(6*second+3, 20*second, check.Unknown) // no answer any more
	faults := []check.Fault{
		{Kind: "cut", From: 2 * second, To: 3 * second}, {Kind: "kill", From: 3 * second, To: 3 * second},
		{Kind: "late", From: 10 * second, To: 30 * second},
	}
	assert.Equal(t, []outage{
		{6*second + 2, 20 * second, []string{"late"}},
		{1*second + 1, 4 * second, []string{"cut", "kill"}},
		{4 * second, 6 * second, []string{"cut", "kill"}}, // both had just ended
	}, findOutages(calls, faults))
	assert.Equal(t, []string{"(no fault)"}, findOutages(calls, nil)[0].faults)
}

func TestMomentsInFindings(t *testing.T) {
	h := &check.History{Events: []check.Event{{Index: 7, At: 41 * second}, {Index: 8, At: 42 * second}}}
	r := &runReport{history: h}
	for text, want := range map[string][]time.Duration{
		`two held it for 1.234s: a from 2.000s to 3.500s`:       {2 * second, 3500 * time.Millisecond},
		`the term was 3 at index 7 (n1), and is 2 at index 8`:   {41 * second, 42 * second},
		`it ended at 4.000s only, 7.250s later`:                 {4 * second},
		`what it sent at 0.001s was answered, with a ttl of 5s`: {time.Millisecond},
		`no moment is named`:                                    nil,
	} {
		assert.Equal(t, want, r.momentsOf(text), text)
	}
	assert.Equal(t, `a"b`, lockOf(`lock "a\"b": token 3`))
}

// Two files are one run; the second one shows that the first client held the lock too long. The summary shows
// what happened around the violation, and a fault beside it.
func TestRecheck(t *testing.T) {
	item := []check.Item{{Name: "a", Mode: check.Exclusive}}
	recorded := func(client string, session, token uint64, from, to time.Duration) string {
		ref := check.Ref{Session: session, Ticket: 1}
		h := check.History{Plan: check.Plan{Begin: 1, End: time.Minute}}
		h.Ops = []check.Op{
			{Client: client, Kind: check.OpLock, Ref: ref, Items: item, Call: from - 1, Return: from,
				Outcome: check.OK, Token: token},
			{Client: client, Kind: check.OpUnlock, Ref: ref, Items: item, Call: to, Return: to + 1,
				Outcome: check.OK},
		}
		h.Holds = []check.Hold{{Client: client, Ref: ref, Token: token, Items: item, From: from, To: to,
			End: check.Unlocked}}
		h.Faults = []check.Fault{{Kind: "cut", Target: "n1", From: 14 * second, To: 16 * second}}
		name := filepath.Join(t.TempDir(), client)
		file, err := os.Create(name)
		require.NoError(t, err)
		require.NoError(t, h.Write(file))
		require.NoError(t, file.Close())
		return name
	}
	one := recorded("one", 7, 8, 10*second, 20*second)
	v, err := recheck("", []string{one})
	require.NoError(t, err)
	assert.Equal(t, passed, v)

	dir := t.TempDir()
	v, err = recheck(dir, []string{one, recorded("two", 9, 10, 15*second, 25*second)})
	require.NoError(t, err)
	assert.Equal(t, violated, v)
	text, err := os.ReadFile(filepath.Join(dir, "summary.md"))
	require.NoError(t, err)
	for _, want := range []string{
		": violated", "## Violation of C2", "FAULT cut: n1", "one: held, ticket 7/1, token 8, unlocked",
		"two: lock ok, ticket 9/1, token 10", "| unlock | 2 | 0 | 0 |", "| cut | 2 |", "order-1.html",
	} {
		assert.Contains(t, string(text), want)
	}
	assert.FileExists(t, filepath.Join(dir, "order-1.html"))

	_, err = recheck("", []string{filepath.Join(dir, "no such file")})
	assert.ErrorContains(t, err, "no such file")
	_, err = recheck("", []string{filepath.Join(dir, "summary.md")})
	assert.ErrorContains(t, err, "summary.md: history, record 1")
	_, err = recheck("", nil)
	assert.Error(t, err)
}
