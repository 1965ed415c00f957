package check

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zamok/client"
)

// changedHistory is the history of testdata/valid.txt after changes, one a line:
//
//	op kind=lock ref=12/1: token=19      sets fields of the first record that begins so
//	without hold ref=11/1                leaves out the records that begin so
//	renewal session=13 sent=25s          is one more record
func changedHistory(t *testing.T, changes ...string) *History {
	text, err := os.ReadFile("testdata/valid.txt")
	require.NoError(t, err)
	lines := strings.Split(string(text), "\n")
	for _, change := range changes {
		begins := func(prefix string) func(string) bool {
			return func(line string) bool { return strings.HasPrefix(line, prefix+" ") }
		}
		if prefix, drops := strings.CutPrefix(change, "without "); drops {
			lines = slices.DeleteFunc(lines, begins(prefix))
		} else if prefix, fields, sets := strings.Cut(change, ": "); sets {
			at := slices.IndexFunc(lines, begins(prefix))
			require.GreaterOrEqual(t, at, 0, "no record begins with %q", prefix)
			lines[at] += " " + fields // of two values of a field the later counts
		} else {
			lines = append(lines, change)
		}
	}
	var records strings.Builder
	for _, line := range lines {
		if line != "" && line[0] != '#' {
			require.NoError(t, json.NewEncoder(&records).Encode(parseRecord(t, line)), line)
		}
	}
	h := &History{}
	require.NoError(t, h.Read(strings.NewReader(records.String())))
	return h
}

// parseRecord reads a line of text as the record that [History.Read] knows: its kind, and its
// fields as JSON names them. Moments have a unit there; ref is the session and the ticket; items
// are a lock and its mode, or permits of a limit.
func parseRecord(t *testing.T, line string) map[string]any {
	words := strings.Fields(line)
	fields := map[string]any{}
	for _, word := range words[1:] {
		name, text, _ := strings.Cut(word, "=")
		moment, err := time.ParseDuration(text)
		switch {
		case err == nil:
			fields[name] = moment
		case name == "ref" || name == "holders":
			var ref Ref
			_, err := fmt.Sscanf(text, "%d/%d", &ref.Session, &ref.Ticket)
			require.NoError(t, err, line)
			if fields[name] = []Ref{ref}; name == "ref" {
				delete(fields, name)
				fields["session"], fields["ticket"] = ref.Session, ref.Ticket
			}
		case name == "items":
			var item Item
			lock, mode, _ := strings.Cut(text, ":")
			if n, _ := fmt.Sscanf(mode, "%d/%d", &item.Permits, &item.Limit); n == 2 {
				mode = string(Permits)
			}
			item.Name, item.Mode = lock, Mode(mode)
			fields[name] = []Item{item}
		case json.Valid([]byte(text)):
			fields[name] = json.RawMessage(text)
		default:
			fields[name] = text
		}
	}
	return map[string]any{words[0]: fields}
}

// checkChanges checks the changed histories of a file. The file has all that is found in each, and
// may name the check that must find something;
//
//	go test ./jepsen/check -rewrite
//
// writes down what is found now, to be read line by line.
func checkChanges(t *testing.T, path string) (found []Finding, named []string) {
	datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
		r := Check(changedHistory(t, strings.Split(d.Input, "\n")...))
		found = append(found, r.Violations...)
		for _, arg := range d.CmdArgs {
			named = append(named, arg.Key)
			finds := func(f Finding) bool { return f.Check == arg.Key }
			assert.True(t, slices.ContainsFunc(r.Violations, finds), "%s: %s sees nothing of it",
				d.Pos, arg.Key)
		}
		return r.findings()
	})
	return found, named
}

// Each single corruption of a valid history is seen, by the check whose business it is.
func TestCorruptionsAreDetected(t *testing.T) {
	_, named := checkChanges(t, "testdata/corruptions.txt")
	for _, c := range checks() {
		assert.Contains(t, named, c.id, "no corruption is for it")
	}
}

// What is excused is no violation.
func TestExcusedFindings(t *testing.T) {
	found, _ := checkChanges(t, "testdata/excused.txt")
	assert.Empty(t, found)
}

func TestInvalidRuns(t *testing.T) { checkChanges(t, "testdata/invalid.txt") }

func TestValidHistory(t *testing.T) {
	r := Check(changedHistory(t))
	require.True(t, r.OK(), "%v", r)
	for _, c := range checks() {
		assert.NotZero(t, r.Examined[c.id], c.id)
	}
	assert.Equal(t, 1, r.Outcomes[OpTryLock][Refused])
}

// A history with more than can be judged is invalid, and so is a record with more torn lines than
// clients that died.
func TestLimits(t *testing.T) {
	for want, spoil := range map[string]func(h *History){
		"2 lines of the record are torn, and 1 clients died": func(h *History) {
			h.TruncatedLines = 2
		},
		// So many that the search takes far longer than it takes to see that its time is over.
		`C1: no order was found for 5007 calls of lock "a" in 1ns, nor that there is none`: func(
			h *History) {
			h.overlapping(5000)
		},
		`C1: lock "a" has 30007 calls without a quiet moment between them; 30000 can be judged`: func(h *History) {
			h.overlapping(chunkMax)
		},
	} {
		h := changedHistory(t)
		spoil(h)
		timeout := searchTimeout
		if strings.Contains(want, "1ns") {
			timeout = 1
		}
		assert.Contains(t, checkWithin(h, timeout).Invalid, want)
	}
}

// overlapping adds one get of lock a that lasts all day, and many others meanwhile.
func (h *History) overlapping(reads int) {
	get := Op{Client: "zoe", Kind: OpGet, Items: []Item{{Name: "a"}}, Outcome: OK, Term: 2}
	long := get
	long.Call, long.Return, long.Holders = time.Second, 59*time.Second, []Ref{{99, 1}}
	h.Ops = append(h.Ops, long)
	for i := range reads {
		get.Call = 20*time.Second + time.Second*time.Duration(i)/time.Duration(reads)
		get.Return = get.Call + time.Millisecond
		h.Ops = append(h.Ops, get)
	}
}

func TestUnresolvedCallsAreCounted(t *testing.T) {
	call := "op kind=lock client=eve items=a:exclusive call=15s return=16s outcome=unknown"
	assert.Equal(t, 3, Check(changedHistory(t, call, call, call)).Unresolved)
}

func TestFindingsAreLimited(t *testing.T) {
	writes := slices.Repeat([]string{"write at=8s client=ann token=23 resource=a"}, 30)
	r := Check(changedHistory(t, append(writes, "plan: min_ok=1000")...))
	require.Len(t, r.Violations, findingsMax+1)
	assert.Equal(t, "C3: … and 10 more", r.Violations[findingsMax].String())
	assert.Contains(t, r.String(), "invalid run: the load was too low")
}

func TestVisualize(t *testing.T) {
	var page strings.Builder
	require.NoError(t, Visualize(changedHistory(t, "op kind=check ref=11/1: held=false"),
		"a", &page))
	assert.Contains(t, page.String(), "check of token 20: held=false")
	assert.Contains(t, page.String(), "pause zoe")

	page.Reset()
	h := changedHistory(t, "op kind=lock ref=12/1: return=4.5s")
	require.NoError(t, Visualize(h, "a", &page))
	assert.Contains(t, page.String(), "grant of token 23")
	assert.ErrorContains(t, Visualize(h, "none", &page), `there is no lock "none"`)
}

func TestUnansweredGrantsAreAssignedToCalls(t *testing.T) {
	items := []Item{{Name: "a", Mode: Exclusive}}
	grant := func(at time.Duration, session, ticket, token uint64) Event {
		return Event{
			At: at, Index: token, Kind: EvGranted, Ref: Ref{Session: session, Ticket: ticket},
			Token: token, Items: items,
		}
	}
	h := &History{
		Sessions: []Session{{Session: 1, Client: "c1"}, {Session: 2, Client: "c2"},
			{Session: 5, Client: "c3"}},
		Ops: []Op{
			{Client: "c1", ID: 1, Kind: OpLock, Items: items, Call: 10, Return: 20,
				Outcome: Unknown},
			{Client: "c2", ID: 1, Kind: OpLock, Items: items, Call: 11, Queued: 12, Return: 90,
				Outcome: OK, Token: 70, Ref: Ref{Session: 2, Ticket: 9}},
			{Client: "c3", ID: 1, Kind: OpTryLock, Items: items, Call: 30, Return: 50,
				Outcome: Refused},
		},
		Events: []Event{
			grant(25, 1, 4, 50), // what c1 had given up
			grant(30, 2, 8, 60), // c2 learned of it too late, and requested the lock again
			grant(80, 2, 9, 70),
			grant(5, 1, 3, 40),  // before it was requested
			grant(30, 3, 1, 61), // of no session that is known
			grant(40, 5, 1, 64), // c3 learned of it too late, and its next request was refused
			grant(60, 5, 2, 65), // after the call of c3
			grant(31, 4, 1, 62), // c2 again; session 4 was never listed
			{At: 32, Index: 63, Kind: EvEnded, Ref: Ref{Session: 4}, Client: "c2"},
		},
	}
	h.AddUnansweredGrants()
	var added []Ref
	for _, op := range h.Ops[3:] {
		assert.Equal(t, Unknown, op.Outcome)
		added = append(added, op.Ref)
	}
	assert.Equal(t, []Ref{{Session: 1, Ticket: 4}, {Session: 2, Ticket: 8}, {Session: 5, Ticket: 1},
		{Session: 4, Ticket: 1}}, added)
	assert.Zero(t, h.Ops[1].Queued, "that may have been the place of ticket 8")
}

// An unknown outcome is never recorded as refused.
func TestOutcome(t *testing.T) {
	for _, c := range []struct {
		err  error
		want Outcome
	}{
		{nil, OK},
		{client.ErrNotAcquired, Refused},
		{&client.Error{Kind: client.ErrSessionExpired}, Refused},
		{&client.Error{Kind: client.ErrSessionExpired, Outcome: client.Unknown}, Unknown},
		{fmt.Errorf("lock: %w", client.ErrUnavailable), Unknown},
		{fmt.Errorf("lock: %w", context.Canceled), Unknown},
		{context.DeadlineExceeded, Unknown},
	} {
		assert.Equal(t, c.want, OutcomeOf(c.err), "%v", c.err)
	}
}

func TestLossReason(t *testing.T) {
	for want, err := range map[string]error{
		Expired: client.ErrSessionExpired,
		"force_released": fmt.Errorf("x: %w",
			&client.Error{Kind: client.ErrLost, Reason: "force_released"}),
		"disconnected": &client.Error{Kind: client.ErrSessionExpired, Reason: "disconnected"},
		"":             client.ErrLost,
	} {
		assert.Equal(t, want, LossReason(err), "%v", err)
	}
}

func TestItems(t *testing.T) {
	assert.Equal(t, []Item{{Name: "a", Mode: Exclusive}, {Name: "b", Mode: Shared}},
		ItemsOf([]client.Item{client.ExclusiveItem("a"), client.SharedItem("b")}))
	assert.Empty(t, ItemsOf(nil))
}

// A million calls are checked in less than a minute of one core, in less than 2 GB: fewer, in as
// much less. Other work on the machine does not count, nor does what is freed meanwhile help.
func TestMillionCallsInOneMinute(t *testing.T) {
	h := generate(1, generatorConfig{clients: 60, locks: 60, pools: 8, steps: 200_000,
		ttl:   10 * time.Second,
		audit: true, faults: true})
	calls := len(h.Ops)
	require.Greater(t, calls, 100_000)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := busyTime(t)
	r := Check(h)
	took := busyTime(t) - start
	runtime.ReadMemStats(&after)
	require.True(t, r.OK(), "%v", r)
	made := after.TotalAlloc - before.TotalAlloc
	t.Logf("%d records of calls and %d events took %v and %d MB", calls, len(h.Events), took,
		made>>20)
	assert.Less(t, took, time.Minute/1000*time.Duration(calls)/1000)
	assert.Less(t, made, uint64(2<<30)/1000*uint64(calls)/1000)
}

// busyTime is how long this process has kept processors busy.
func busyTime(t *testing.T) time.Duration {
	var u unix.Rusage
	require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
