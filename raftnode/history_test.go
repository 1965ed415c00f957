package raftnode

import (
	"bytes"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode/peer"
)

// restored is where the history begins that a backup becomes.
func restored(t *testing.T, file []byte, above uint64) uint64 {
	made, err := Restore(bytes.NewReader(file), RestoreConfig{
		Node: peer.Node{ID: "r1", Address: "127.0.0.1:1"}, Dir: filepath.Join(t.TempDir(), "data"),
		Above: above,
	})
	require.NoError(t, err)
	return made.Index
}

// moved is the backup of a history that began above an index, and has done nothing since.
func moved(t *testing.T, file []byte, above uint64) []byte {
	var b bytes.Buffer
	_, _, err := fsm.RewriteBackup(&b, bytes.NewReader(file),
		fsm.NewHistory{Cluster: fsm.ClusterID{1}, AboveIndex: above})
	require.NoError(t, err)
	return b.Bytes()
}

// farAhead is an index that no clock reaches this century.
const farAhead = 1<<52 + 1<<51

// One backup is restored again and again. Each history begins so far above the one before that this
// one can have issued 2²⁰ tokens for each second until then.
func TestEachRestoreOfABackupBeginsAboveTheOneBefore(t *testing.T) {
	t.Parallel()
	file, _, _ := backup(t)
	for name, c := range map[string]struct {
		file  []byte
		above uint64
	}{
		"of a cluster that began at the clock": {file, 0},
		"ahead of the clock":                   {moved(t, file, farAhead), 0},
		"above a number ahead of the clock":    {file, farAhead},
		"above a number behind the clock":      {file, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			before, at := uint64(0), time.Time{}
			for range 4 {
				began := time.Now()
				index := restored(t, c.file, c.above)
				if before != 0 {
					assert.Greater(t, index,
						before+uint64(began.Sub(at))<<tokenShift/uint64(time.Second))
				}
				assert.GreaterOrEqual(t, index, c.above)
				before, at = index, time.Now()
			}
		})
	}
}

// Two machines restore one backup at one moment, by clocks that agree.
func TestRestoresAtOneMomentBeginApart(t *testing.T) {
	file, _, _ := backup(t)
	for name, file := range map[string][]byte{"at the clock": file,
		"ahead of the clock": moved(t, file, farAhead)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var indexes [2]uint64
				var both sync.WaitGroup
				for i := range indexes {
					both.Go(func() { indexes[i] = restored(t, file, 0) })
				}
				both.Wait()
				assert.NotEqual(t, indexes[0], indexes[1]) // once in 2¹⁸ runs they are
			})
		})
	}
}

// A restored cluster is backed up and restored, and a new cluster begins before and after it, all
// in one second.
func TestARestoreOfARestoreAndANewClusterInOneSecond(t *testing.T) {
	file, _, _ := backup(t)
	for name, file := range map[string][]byte{"at the clock": file,
		"ahead of the clock": moved(t, file, farAhead)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				base, _ := TokenClock(began)
				time.Sleep(startJitterMax) // until it has a leader
				first := restored(t, file, 0)
				require.Greater(t, first, base)
				second := restored(t, moved(t, file, first), 0)
				require.Greater(t, second, first)
				require.Less(t, time.Since(began), time.Second)
				if name == "at the clock" {
					third, _ := TokenClock(time.Now())
					require.Greater(t, third, second)
				}
			})
		})
	}
}

// timelineOf plays a clock by which one history after the other begins: new ones, and restores of
// any backup of any of them. All of them issue tokens as fast as they may. Each begins above all
// that there was.
func timelineOf(t *rapid.T, now time.Time, lead uint64, fresh bool, steps []time.Duration) {
	type history struct {
		base  uint64
		began time.Time
	}
	var all []history
	issued := func(h history) uint64 { // up to now
		return h.base + uint64(now.Sub(h.began)/time.Second)<<tokenShift +
			uint64(now.Sub(h.began)%time.Second)<<tokenShift/uint64(time.Second)
	}
	begin := func(above uint64) {
		tokens, begins := TokenClock(now)
		h := history{fsm.TokenBase(tokens, above), begins}
		for _, other := range all {
			if h.base <= other.base || h.base < issued(other) {
				t.Fatalf("a history begins at %d: one before it began at %d and has issued %d",
					h.base, other.base, issued(other))
			}
		}
		if h.base < above || h.base >= fsm.TokenBaseMax {
			t.Fatalf("a history above %d begins at %d", above, h.base)
		}
		all, now = append(all, h), begins
	}
	begin(lead)
	for _, step := range steps {
		now = now.Add(step)
		if fresh && rapid.IntRange(0, 3).Draw(t, "kind") == 0 {
			begin(0)
			continue
		}
		of := all[rapid.IntRange(0, len(all)-1).Draw(t, "of")]
		begin(rapid.Uint64Range(of.base, issued(of)).Draw(t, "index"))
	}
}

func TestHistoriesNeverShareTokens(t *testing.T) {
	step := rapid.OneOf(
		rapid.Custom(func(t *rapid.T) time.Duration {
			return time.Duration(rapid.Int64Range(1000, int64(time.Second)).Draw(t, "short"))
		}),
		rapid.Custom(func(t *rapid.T) time.Duration {
			return time.Duration(rapid.Int64Range(1000, int64(4*365*24*time.Hour)).Draw(t, "long"))
		}))
	start := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	t.Run("for two centuries", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			timelineOf(t, start, 0, true, rapid.SliceOfN(step, 1, 50).Draw(t, "steps"))
		})
	})
	t.Run("ahead of the clock, for eight years", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			lead := rapid.Uint64Range(1<<51, fsm.TokenBaseMax-2*fsm.TokenLead).Draw(t, "lead")
			steps := rapid.SliceOfN(step, 1, 2).Draw(t, "steps")
			timelineOf(t, start, lead, false, steps)
		})
	})
}

// The scale is used up in 2242, and a clock that was never set is harmless.
func TestTheScaleOfTokens(t *testing.T) {
	tokens, begins := TokenClock(time.Date(2242, 1, 1, 0, 0, 0, 0, time.UTC))
	assert.Less(t, tokens, uint64(fsm.TokenBaseMax))
	assert.Equal(t, 2242, begins.UTC().Year())
	tokens, _ = TokenClock(time.Date(1901, 1, 1, 0, 0, 0, 0, time.UTC))
	assert.NotZero(t, tokens)
	assert.Less(t, tokens, uint64(1)<<tokenShift)

	// Of a thousand pairs that begin at one moment, the few that are near each other.
	now, near := time.Unix(1<<31, rand.Int64N(int64(time.Second))), 0
	for range 1000 {
		a, _ := TokenClock(now)
		b, _ := TokenClock(now)
		if max(a, b)-min(a, b) < 1000 {
			near++
		}
	}
	assert.Less(t, near, 50, "some eight are to be expected")
}

// A number so high that nothing is left below what tokens may be is refused, and nothing is made.
func TestANumberThatLeavesNoRoomIsRefused(t *testing.T) {
	file, _, _ := backup(t)
	dir := filepath.Join(t.TempDir(), "data")
	_, err := Restore(bytes.NewReader(file), RestoreConfig{
		Node: peer.Node{ID: "r1", Address: "127.0.0.1:1"}, Dir: dir, Above: fsm.TokenBaseMax - 1,
		HoldOff: clock.Second,
	})
	require.ErrorContains(t, err, "no room")
	require.ErrorContains(t, err, "no cluster was made")
	require.NoError(t, mustBeEmpty(dir))
}
