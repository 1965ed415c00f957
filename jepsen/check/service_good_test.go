package check

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func shapes(r *rand.Rand) shape {
	ttl := 2*time.Second + time.Duration(r.IntN(4))*time.Second
	sh := shape{
		clients: 2 + r.IntN(10), mutexes: 1 + r.IntN(4), pools: r.IntN(2), ttl: ttl,
		healed: 20 * time.Second, end: 20*time.Second + 5*ttl, audit: r.IntN(2) == 0, faults: r.IntN(4) > 0,
	}
	if sh.audit && r.IntN(2) == 0 {
		sh.late = 50 * time.Millisecond
	}
	return sh
}

// What a correct service records has no violation, whatever went wrong around it.
func TestACorrectServiceIsFoundCorrect(t *testing.T) {
	base := rand.Uint64()
	runs := 30
	if testing.Short() {
		runs = 10
	}
	for seed := base; seed < base+uint64(runs); seed++ {
		h := serve(seed, shapes(rand.New(rand.NewPCG(seed, 2))))
		if r := Check(h, Limits{}); !assert.True(t, r.OK(), "seed %d:\n%v", seed, r) {
			return
		}
	}
}

func TestAHistoryIsReadAsItWasWritten(t *testing.T) {
	seed := rand.Uint64()
	h := serve(seed, shape{
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
	assert.Equal(t, 1, torn.Torn)
	for line, want := range map[string]string{
		`{"op":{"client":"c"}} {"opp":{}}`: `history, record 2: json: unknown field "opp"`,
		`{}`:                               "history, record 1: there is nothing in it",
		`{"op":{"call":"soon"}}`:           "history, record 1: json: cannot unmarshal string into Go",
	} {
		assert.ErrorContains(t, new(History).Read(strings.NewReader(line)), want)
	}
}

// A million calls are checked in less than a minute on one core, in less than 2 GB: a fifth of them, in
// a fifth of that.
func TestAMillionCallsTakeLessThanAMinute(t *testing.T) {
	h := serve(1, shape{
		clients: 60, mutexes: 60, pools: 8, ttl: 10 * time.Second, healed: 155 * time.Second, end: 180 * time.Second,
		audit: true, faults: true,
	})
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	start := time.Now()
	r := Check(h, Limits{})
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	require.True(t, r.OK(), "%v", r)
	t.Logf("%d records of calls and %d events took %v; %d MB before, %d MB more",
		len(h.Ops), len(h.Events), took, before.HeapAlloc>>20, (after.HeapSys-before.HeapSys)>>20)
	assert.Less(t, took, time.Minute/5)
	assert.Less(t, after.HeapSys-before.HeapSys, uint64(2<<30)/5)
}
