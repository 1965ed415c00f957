package fsm_test

import (
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// seedOf is where the chance of a test begins: ZAMOK_SEED, or any number. It is printed, since a
// failure is played again with it.
func seedOf(t *testing.T) uint64 {
	seed := rand.Uint64()
	if text := os.Getenv("ZAMOK_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "ZAMOK_SEED")
	}
	t.Logf("ZAMOK_SEED=%d", seed)
	return seed
}

// logChoice is the chance of one of a test's logs.
func logChoice(seed uint64, log int) choice { return rand.New(rand.NewPCG(seed, uint64(log))).IntN }

// sized is how much of something a test does: in .ci/run, which sets ZAMOK_TEST_ALL; in make test;
// with -short.
func sized(all, quick, short int) int {
	switch {
	case testing.Short():
		return short
	case os.Getenv("ZAMOK_TEST_ALL") == "":
		return quick
	}
	return all
}

// A million commands in .ci/run, a quarter of that in make test: machine and model do the same, and
// a witness who knows neither finds nothing wrong. Every log ends with what must always come true:
// when holders drop, everybody who waits is served; when all are silent, nothing is left.
func TestMachineMatchesModel(t *testing.T) {
	seed := seedOf(t)
	logs := sized(400, 100, 60)
	workers := runtime.GOMAXPROCS(0)
	var mu sync.Mutex
	var all tally // guarded by mu
	var group sync.WaitGroup
	for worker := range workers {
		group.Go(func() {
			var own tally
			for log := worker; log < logs && !t.Failed(); log += workers {
				if p, err := runLog(logChoice(seed, log), log, &own); err != nil {
					t.Errorf("log %d of ZAMOK_SEED=%d: %v\nthe same with less:\n%s", log, seed, err,
						shrink(p.log))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			all.add(&own)
		})
	}
	group.Wait()
	t.Log(all.String())
	assert.Empty(t, all.missing(), "never happened")
	assert.GreaterOrEqual(t, all.commands, logs*commandsPerLog)
}

const commandsPerLog = 2500

// runLog plays one log, checking the whole state after every entry of some logs and now and then in
// the others.
func runLog(pick choice, log int, counts *tally) (*comparison, error) {
	p := newComparison()
	g := newGenerator(pick, p.model)
	for commands, entries := 0, 0; commands < commandsPerLog; entries++ {
		r := g.record()
		if pick.oneIn(1000) {
			r = g.restore()
		}
		a, err := p.apply(r)
		if err != nil {
			return p, err
		}
		if log%4 == 0 || entries%16 == 0 {
			if err := p.check(); err != nil {
				return p, err
			}
		}
		if r.restore != nil {
			counts.restores++
			continue
		}
		counts.count(r, &a)
		g.observe(r, &a)
		commands += len(a.Results)
	}
	counts.members.add(p.model.modelCounts)
	return p, p.checkLiveness()
}

// The same, driven by rapid, which makes a failure small by changing what was chosen.
func TestMachineMatchesModelRapid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newComparison()
		g := newGenerator(func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "choice") },
			p.model)
		for range rapid.IntRange(1, 80).Draw(t, "entries") {
			r := g.record()
			a, err := p.apply(r)
			if err == nil {
				err = p.check()
			}
			if err != nil {
				t.Fatalf("%v\n%s", err, listing(p.log))
			}
			g.observe(r, &a)
		}
	})
}
