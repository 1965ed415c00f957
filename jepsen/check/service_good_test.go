package check

import (
	"bytes"
	"math/rand/v2"
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
	runs := 60
	if testing.Short() {
		runs = 15
	}
	for seed := base; seed < base+uint64(runs); seed++ {
		h := serve(seed, shapes(rand.New(rand.NewPCG(seed, 2))))
		if r := Check(h, Limits{}); !assert.True(t, r.OK(), "seed %d:\n%v", seed, r) {
			return
		}
		var lines bytes.Buffer
		require.NoError(t, h.Write(&lines))
		var back History
		require.NoError(t, back.Read(&lines))
		require.Equal(t, h, &back, "seed %d", seed)
	}
}
