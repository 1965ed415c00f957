package check

import (
	"bytes"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// seedOf is where the random histories of a test begin: always the same, so that a checker's error which one
// in thousands of histories shows is met by a search for it, ZAMOK_SEED=n go test, and not by
// an unrelated change.
func seedOf(t *testing.T) uint64 {
	text := os.Getenv("ZAMOK_SEED")
	if text == "" {
		return 1
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err, "ZAMOK_SEED")
	return seed
}

// What a correct service records has no violation, whatever went wrong around it.
func TestCorrectServiceHasNoViolations(t *testing.T) {
	base, examined := seedOf(t), map[string]int{}
	for seed := base; seed < base+40; seed++ {
		r := rand.New(rand.NewPCG(seed, 2))
		h := generate(seed, generatorConfig{
			clients: 2 + r.IntN(10), locks: 1 + r.IntN(4), pools: r.IntN(2), steps: 5000, ttl: time.Second + time.Duration(r.IntN(2))*time.Second,
			audit: r.IntN(2) == 0, lateEvents: r.IntN(2) == 0, faults: r.IntN(4) > 0,
		})
		report := Check(h)
		require.True(t, report.OK(), "seed %d:\n%v", seed, report)
		for id, n := range report.Examined {
			examined[id] += n
		}
	}
	for _, c := range checks() {
		assert.Greater(t, examined[c.id], 20, c.id)
	}
}

func TestHistoryRoundTrip(t *testing.T) {
	seed := seedOf(t)
	h := generate(seed, generatorConfig{clients: 3, locks: 2, pools: 1, steps: 1000, ttl: 2 * time.Second,
		audit: true, faults: true})
	var lines bytes.Buffer
	require.NoError(t, h.Write(&lines))
	text := lines.String()
	var back History
	require.NoError(t, back.Read(strings.NewReader(text)))
	require.Equal(t, h, &back, "seed %d", seed)

	var torn History
	require.NoError(t, torn.Read(strings.NewReader(text[:len(text)-9])))
	assert.Equal(t, 1, torn.TruncatedLines)
	for line, want := range map[string]string{
		`{"op":{"client":"c"}} {"opp":{}}`: `history, record 2: json: unknown field "opp"`,
		`{}`:                               "history, record 1: there is nothing in it",
		`{"op":{"call":"soon"}}`:           "history, record 1: json: cannot unmarshal string into Go",
	} {
		assert.ErrorContains(t, new(History).Read(strings.NewReader(line)), want)
	}
}

// A million calls are checked in less than a minute of one core, in less than 2 GB: fewer, in as much
// less. Other work on the machine does not count, nor does what is freed meanwhile help.
func TestMillionCallsInOneMinute(t *testing.T) {
	h := generate(1, generatorConfig{clients: 60, locks: 60, pools: 8, steps: 200_000, ttl: 10 * time.Second,
		audit: true, faults: true})
	calls := len(h.Ops)
	require.Greater(t, calls, 100_000)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := newBusyHistory(t)
	r := Check(h)
	took := newBusyHistory(t) - start
	runtime.ReadMemStats(&after)
	require.True(t, r.OK(), "%v", r)
	made := after.TotalAlloc - before.TotalAlloc
	t.Logf("%d records of calls and %d events took %v and %d MB", calls, len(h.Events), took, made>>20)
	assert.Less(t, took, time.Minute/1000*time.Duration(calls)/1000)
	assert.Less(t, made, uint64(2<<30)/1000*uint64(calls)/1000)
}

// newBusyHistory is how long this process has kept processors busy.
func newBusyHistory(t *testing.T) time.Duration {
	var u unix.Rusage
	require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// The search is made short by what tokens say of the order, and by cutting where nothing is under way.
// Neither changes what it finds.
func TestChunkedSearchAgreesWithFullSearch(t *testing.T) {
	base, good, bad := seedOf(t), 0, 0
	for seed := base; seed < base+400; seed++ {
		h := generate(seed, generatorConfig{clients: 3, locks: 1, pools: 1, steps: 40, ttl: 2 * time.Second,
			audit: seed%2 == 0})
		r := rand.New(rand.NewPCG(seed, 4))
		if seed%3 != 0 {
			for range 4 {
				addNoise(r, h)
			}
		}
		v := newHistoryIndex(h)
		want := true
		twins := false
		for _, name := range v.lockNames {
			grants := v.grantsOf(v.locks[name])
			for i := range grants {
				twins = twins || i > 0 && grants[i].token == grants[i-1].token
			}
			c := &chunk{historyIndex: v, name: name, grants: grants, steps: v.stepsOf(v.locks[name], grants)}
			result := porcupine.CheckOperationsTimeout(c.model(), c.operations(), searchTimeout)
			require.NotEqual(t, porcupine.Unknown, result, "seed %d", seed)
			want = want && result == porcupine.Ok
		}
		if twins {
			continue // one token for two is one moment for two, which only the short search knows
		}
		f := &checker{historyIndex: v, timeout: searchTimeout, chunkMin: 1, report: &Report{}}
		checkLinearizability(f)
		require.Equal(t, want, len(f.report.Violations) == 0, "seed %d: %v", seed, f.report.Violations)
		if want {
			good++
		} else {
			bad++
		}
	}
	assert.Greater(t, good, 20, "seed %d", base)
	assert.Greater(t, bad, 20, "seed %d", base)
}

// addNoise changes one answer, which may or may not be wrong then.
func addNoise(r *rand.Rand, h *History) {
	op := &h.Ops[r.IntN(len(h.Ops))]
	switch {
	case op.Outcome != OK:
	case op.Kind == OpCheck:
		op.Held = !op.Held
	case op.Kind == OpGet && len(op.Holders) > 0:
		op.Holders = op.Holders[1:]
	case op.acquires() && r.IntN(2) == 0:
		op.Token += uint64(r.IntN(20)) - 10
	default:
		op.Return = op.Call + time.Duration(r.Int64N(int64(op.Return-op.Call)+1))
	}
}
