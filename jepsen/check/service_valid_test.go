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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func serviceConfigs(r *rand.Rand) serviceConfig {
	ttl := 2*time.Second + time.Duration(r.IntN(4))*time.Second
	sh := serviceConfig{
		clients: 2 + r.IntN(10), mutexes: 1 + r.IntN(4), pools: r.IntN(2), ttl: ttl,
		healed: 20 * time.Second, end: 20*time.Second + 5*ttl, audit: r.IntN(2) == 0, faults: r.IntN(4) > 0,
	}
	if sh.audit && r.IntN(2) == 0 {
		sh.eventDelayMax = 50 * time.Millisecond
	}
	return sh
}

// seedOf is where the random histories of a test begin: always the same, so that a checker's error which one
// in thousands of histories shows is met by who searches for it, ZAMOK_SEED=n go test, and not by whoever
// changes something else.
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
	base := seedOf(t)
	runs := 20
	if testing.Short() {
		runs = 10
	}
	for seed := base; seed < base+uint64(runs); seed++ {
		h := simulate(seed, serviceConfigs(rand.New(rand.NewPCG(seed, 2))))
		if r := Check(h, Limits{}); !assert.True(t, r.OK(), "seed %d:\n%v", seed, r) {
			return
		}
	}
}

func TestHistoryRoundTrip(t *testing.T) {
	seed := seedOf(t)
	h := simulate(seed, serviceConfig{
		clients: 3, mutexes: 2, pools: 1, ttl: 2 * time.Second, healed: 3 * time.Second, end: 4 * time.Second,
		audit: true, faults: true,
	})
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
	h := simulate(1, serviceConfig{
		clients: 60, mutexes: 60, pools: 8, ttl: 10 * time.Second, healed: 85 * time.Second, end: 100 * time.Second,
		audit: true, faults: true,
	})
	calls := len(h.Ops)
	require.Greater(t, calls, 100_000)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := newBusyHistory(t)
	r := Check(h, Limits{})
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
