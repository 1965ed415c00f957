package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/jepsen/check"
)

// testSeed is where the random histories begin: always the same, or ZAMOK_SEED.
func testSeed(t *testing.T) uint64 {
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv("ZAMOK_SEED"), "1"), 10, 64)
	require.NoError(t, err, "ZAMOK_SEED")
	t.Logf("seed %d", seed)
	return seed
}

const second = time.Second

// sampleRun makes a history in which nothing is wrong: so many times somebody holds one of some locks and gives it
// back, with faults beside it that do no harm. Now and then one is refused, or loses what it has.
func sampleRun(seed uint64, holds int, locks, clients []string) *check.History {
	r := rand.New(rand.NewPCG(seed, 1))
	h := &check.History{Plan: check.Plan{Name: "lived", Seed: seed, Begin: second}}
	free := make([]time.Duration, len(locks)) // since when
	for i := range free {
		free[i] = second
	}
	for n := range holds {
		at := slices.Index(free, slices.Min(free))
		client, ref := clients[r.IntN(len(clients))], check.Ref{Session: 7, Ticket: uint64(n + 1)}
		items := []check.Item{{Name: locks[at], Mode: check.Exclusive}}
		from := free[at] + time.Duration(1+r.IntN(3000))*time.Microsecond
		to := from + time.Duration(1+r.IntN(20_000))*time.Microsecond
		op := check.Op{
			Client: client, ID: uint64(2*n + 1), Kind: check.OpLock, Ref: ref, Items: items, Call: free[at], Return: from,
			Outcome: check.OK, Token: uint64(n + 1),
		}
		if r.IntN(3) == 0 {
			op.Queued = from - 1
		}
		begun := op // a client writes a line when it begins, and another when it is through
		begun.Outcome, begun.Return = check.Unknown, 0
		h.Ops = append(h.Ops, begun, op)
		b := check.Hold{Client: client, Ref: ref, Token: op.Token, Items: items, From: from, To: to, End: check.Unlocked}
		free[at] = to + time.Duration(1+r.IntN(3000))*time.Microsecond
		unlock := check.Op{Client: client, ID: op.ID + 1, Kind: check.OpUnlock, Ref: ref, Call: to, Return: free[at], Outcome: check.OK}
		h.Ops, h.Holds = append(h.Ops, unlock), append(h.Holds, b)
		if r.IntN(10) == 0 {
			try := check.Op{Client: client, Kind: check.OpTryLock, Items: items, Call: from, Return: from + 1, Outcome: check.Refused}
			h.Ops = append(h.Ops, try)
		}
		h.Plan.End = max(h.Plan.End, free[at])
	}
	for i := range 20 {
		from := second + (h.Plan.End-second)*time.Duration(i)/20
		to := from + time.Duration(i)*time.Millisecond
		h.Faults = append(h.Faults, check.Fault{Kind: fmt.Sprint("kind ", i%3), Target: fmt.Sprint("n", i%4), From: from, To: to})
		h.NodeStates = append(h.NodeStates, check.NodeState{Node: "n1", At: from, Term: uint64(3 + i/5), Index: uint64(i)})
	}
	h.Faults = append(h.Faults, check.Fault{Target: clients[0], From: second, To: second, ExcusesClient: true})
	h.Writes = []check.Write{{Resource: locks[0], Client: clients[0], Token: 1, At: free[0], Accepted: true}}
	h.Plan.Healed = second
	return h
}

func names(prefix string, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint(prefix, i))
	}
	return all
}

// writeSample writes a run's report, and reads its summary and what its page draws.
func writeSample(t *testing.T, run Run) (dir string, s *Summary, visualized *timeline, page string) {
	t.Helper()
	dir = t.TempDir()
	if run.Report == nil {
		run.Report = check.Check(run.History, check.Limits{})
	}
	_, err := Write(dir, run)
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(dir, "summary.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &s))
	text, err = os.ReadFile(filepath.Join(dir, "timeline.html"))
	require.NoError(t, err)
	page = string(text)
	found := regexp.MustCompile(`(?s)<script type="application/json" id="data">(.*?)</script>`).FindStringSubmatch(page)
	require.NotNil(t, found)
	require.NoError(t, json.Unmarshal([]byte(found[1]), &visualized))
	return dir, s, visualized, page
}

// holdsDrawn is how many holds the bars of a lock stand for.
func holdsDrawn(l lockLane) (n int64) {
	for i := 0; i < len(l.Bars); i += 7 {
		if l.Bars[i+2] < 0 {
			n += l.Bars[i+4]
		} else {
			n++
		}
	}
	return n
}
