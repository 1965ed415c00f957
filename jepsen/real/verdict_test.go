package main

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/client"
	"zamok/client/admin"
	"zamok/jepsen/check"
)

func TestQueuedTimeBelongsToGrantedSession(t *testing.T) {
	h := &check.History{
		Holds: []check.Hold{{Ref: check.Ref{Session: 99}, From: 10},
			{Ref: check.Ref{Session: 150}, From: 20}},
		Ops: []check.Op{
			{Queued: 11, Return: 30, Ref: check.Ref{Session: 99, Ticket: 1}},
			{Queued: 11, Return: 40, Ref: check.Ref{Session: 150, Ticket: 1}},
		},
	}
	useHolds(h)
	assert.EqualValues(t, 11, h.Ops[0].Queued)
	assert.Zero(t, h.Ops[1].Queued, "session 150 may have been opened later")
	assert.Len(t, h.Sessions, 2)
}

func TestShuffledKinds(t *testing.T) {
	order := func(seed uint64) (all []string) {
		d := &shuffledKinds{kinds: faultKinds(), random: rand.New(rand.NewPCG(seed, 1))}
		for range 2 * len(d.kinds) {
			all = append(all, d.next().name)
		}
		return all
	}
	first, half := order(7), len(faultKinds())
	assert.Equal(t, first, order(7))
	assert.NotEqual(t, first, order(8))
	assert.ElementsMatch(t, first[:half], first[half:])

	d := &shuffledKinds{kinds: faultKinds()[:3], random: rand.New(rand.NewPCG(1, 1))}
	skipped := d.next()
	d.putBack(skipped)
	d.skippedInRow = 0 // another one is injected
	var got []string
	for range 4 {
		got = append(got, d.next().name)
	}
	assert.Contains(t, got[:3], skipped.name, "it comes again before any comes twice")
	assert.Len(t, d.remaining, 2)
	for range 10 { // no kind is possible
		d.putBack(d.next())
	}
	assert.LessOrEqual(t, len(d.remaining), 2*len(d.kinds),
		"kinds that are put back do not pile up")
}

// A call that changes something is recorded before it is made, and its outcome after it.
func TestRecordedCalls(t *testing.T) {
	parts := t.TempDir()
	file := filepath.Join(parts, "c1.jsonl")
	r, err := newRecorder(file)
	require.NoError(t, err)
	for _, kind := range []check.OpKind{check.OpLock, check.OpDowngrade, check.OpGet} {
		for _, err := range []error{nil, client.ErrNotAcquired, errors.New(`"outcome":"ok"`)} {
			_ = r.Call(check.Op{Client: "c1", Kind: kind}, func(*check.Op) error { return err })
		}
	}
	assert.Equal(t, 3, countSucceeded(parts))
	require.NoError(t, r.close())
	h, err := readHistory([]string{file})
	require.NoError(t, err)
	assert.Len(t, h.Ops, 2*6+3)
	var outcomes []check.Outcome
	for _, op := range h.LatestOps() {
		outcomes = append(outcomes, op.Outcome)
	}
	assert.Equal(t, []check.Outcome{
		check.OK, check.Refused, check.Refused, check.OK, check.Unknown, check.Unknown, check.OK,
		check.Unknown, check.Unknown,
	}, outcomes)
}

// The kinds of a run depend on its nodes, its disks, and its options.
func TestSelectKinds(t *testing.T) {
	names := func(o options, lacks ...requirement) (all []string) {
		kinds, err := o.selectKinds(lacks...)
		require.NoError(t, err)
		for _, k := range kinds {
			all = append(all, k.name)
		}
		return all
	}
	assert.Len(t, faultKinds(), 51)
	assert.Len(t, names(options{nodes: 3, kindPattern: "."}, disks, throttling), 33)
	assert.Len(t, names(options{nodes: 5, kindPattern: "."}), 50)
	assert.Equal(t, []string{"wipe node"}, names(options{nodes: 3, kindPattern: "wipe node"}))
	assert.Equal(t, []string{"two killed, one paused"},
		names(options{nodes: 5, kindPattern: "two killed"}, disks))
	_, err := (&options{kindPattern: "flood"}).selectKinds()
	assert.ErrorContains(t, err, "flood")
}

// An operator ends a session before the sessions are listed for the first time, and its client is
// killed later. So no list shows the session, but its end is in the watch.
func TestUnlistedSessionIsRecordedAsEnded(t *testing.T) {
	const session, second = 7, time.Second
	judged := func(moments ...client.EventBatch) []check.Finding {
		file := filepath.Join(t.TempDir(), "audit.jsonl")
		r, err := newRecorder(file)
		require.NoError(t, err)
		a := &audit{subprocess: &subprocess{record: r}, released: map[check.Ref]bool{}}
		for _, m := range moments {
			a.recordBatch(m)
		}
		live := map[uint64]string{}
		a.recordEndedSessions(live, []admin.SessionInfo{{Session: 9, Label: "c1-1.2"}},
			monotonicNow())
		a.recordEndedSessions(live, nil, monotonicNow())
		require.NoError(t, r.close())
		h, err := readHistory([]string{file})
		require.NoError(t, err)
		h.Plan = check.Plan{Begin: monotonicNow(), End: monotonicNow() + 60*second,
			CompleteEvents: true}
		h.Sessions = append(h.Sessions, // as the program recorded it when it was granted a lock
			check.Session{Session: session, Client: "c1-1.1", TTL: 4 * second,
				Died: monotonicNow() + 20*second})
		assert.Contains(t, h.Sessions, sessionOf(9, "c1-1.2"))
		return check.Check(h).Violations
	}
	ended := client.Event{Index: 12, Kind: client.EventEnded, Session: session,
		Reason: "expired_by_operator",
		Text:   "a test", Label: "c1-1.1"}
	assert.Empty(t, judged(client.EventBatch{Index: 12, Events: []client.Event{ended}}))

	found := judged()
	require.Len(t, found, 1)
	assert.Contains(t, found[0].Text, "was never ended", "and one that did not end is found")
}

const second = time.Second

// An outage lasts from the last answer to the next one, and names the faults beside it.
func TestOutages(t *testing.T) {
	var calls []*check.Op
	probe := func(call, back time.Duration, outcome check.Outcome) {
		calls = append(calls, &check.Op{Client: prober, Kind: check.OpLock, Call: call,
			Return:  back,
			Outcome: outcome})
	}
	probe(1*second, 1*second+1, check.OK)
	probe(2*second, 3*second, check.Unknown)
	probe(3*second, 4*second, check.OK) // during a fault
	probe(4*second+1, 6*second, check.OK)
	calls = append(calls, &check.Op{Client: "another", Call: 6 * second, Return: 99 * second,
		Outcome: check.OK})
	probe(6*second+1, 6*second+2, check.OK)
	probe(6*second+3, 20*second, check.Unknown) // no answer any more
	faults := []check.Fault{
		{Kind: "cut", From: 2 * second, To: 3 * second},
		{Kind: "kill", From: 3 * second, To: 3 * second},
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
	h := &check.History{Events: []check.Event{{Index: 7, At: 41 * second},
		{Index: 8, At: 42 * second}}}
	r := &runReport{history: h}
	for text, want := range map[string][]time.Duration{
		`two held it for 1.234s: a from 2.000s to 3.500s`: {2 * second,
			3500 * time.Millisecond},
		`the term was 3 at index 7 (n1), and is 2 at index 8`:   {41 * second, 42 * second},
		`it ended at 4.000s only, 7.250s later`:                 {4 * second},
		`what it sent at 0.001s was answered, with a ttl of 5s`: {time.Millisecond},
		`no moment is named`:                                    nil,
	} {
		assert.Equal(t, want, r.momentsOf(text), text)
	}
	assert.Equal(t, `a"b`, lockOf(`lock "a\"b": token 3`))
}

// Two files are one run; the second one shows that the first client held the lock too long. The
// summary shows what happened around the violation, and a fault beside it.
func TestRecheck(t *testing.T) {
	item := []check.Item{{Name: "a", Mode: check.Exclusive}}
	recorded := func(client string, session, token uint64, from, to time.Duration) string {
		ref := check.Ref{Session: session, Ticket: 1}
		h := check.History{Plan: check.Plan{Begin: 1, End: time.Minute}}
		h.Ops = []check.Op{
			{Client: client, Kind: check.OpLock, Ref: ref, Items: item, Call: from - 1,
				Return:  from,
				Outcome: check.OK, Token: token},
			{Client: client, Kind: check.OpUnlock, Ref: ref, Items: item, Call: to, Return: to + 1,
				Outcome: check.OK},
		}
		h.Holds = []check.Hold{{Client: client, Ref: ref, Token: token, Items: item,
			From: from, To: to,
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
		": violated", "## Violation of C2", "FAULT cut: n1",
		"one: held, ticket 7/1, token 8, unlocked",
		"two: lock ok, ticket 9/1, token 10", "| unlock | 2 | 0 | 0 |", "| cut | 2 |",
		"order-1.html",
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
