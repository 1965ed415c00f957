package fsm_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/fsm"
)

// generateLog makes up a log with the model alone.
func generateLog(pick choice, commands int) (log []record) {
	m := newModel()
	g := newGenerator(pick, m)
	for commands > 0 {
		r := g.record()
		a := m.apply(r.term, r.entry)
		g.observe(r, &a)
		log = append(log, r)
		commands -= len(a.Results)
	}
	return log
}

// applyToJSON is all that leaves a machine with one entry, as bytes.
func applyToJSON(t *testing.T, m *fsm.Machine, r record) []byte {
	a, err := m.Apply(r.term, r.bytes)
	require.NoError(t, err)
	b, err := json.Marshal(a)
	require.NoError(t, err)
	return b
}

func restored(t *testing.T, snapshot []byte) *fsm.Machine {
	m, err := fsm.Restore(bytes.NewReader(snapshot))
	require.NoError(t, err)
	require.NoError(t, m.Check())
	return m
}

// The same entries do the same, byte for byte, to a machine that just applies them, to one that is
// frozen before each, and to one that is replaced before each by what its snapshot gives: wherever
// a snapshot is taken, what follows is the same. And a snapshot is of the moment at which the
// machine was frozen, however much later it is written.
func TestSnapshotsDoNotAffectLog(t *testing.T) {
	seed := seedOf(t)
	for log := range sized(40, 20, 10) {
		plain, frozen, replaced := fsm.New(), fsm.New(), fsm.New()
		var previous *fsm.Frozen // of the entry before
		var previousWant []byte  // what it must hold
		for i, r := range generateLog(logChoice(seed, log), 600) {
			before := machineSnapshot(replaced)
			replaced = restored(t, before)
			require.Equal(t, before, machineSnapshot(replaced),
				"log %d, entry %d: a restored machine's own snapshot", log, i)
			next := frozen.Freeze()

			want := applyToJSON(t, plain, r)
			require.Equal(t, want, applyToJSON(t, frozen, r), "log %d, entry %d: frozen", log, i)
			require.Equal(t, want, applyToJSON(t, replaced, r),
				"log %d, entry %d: restored", log, i)
			require.Equal(t, plain.Digest(), frozen.Digest(), "log %d, entry %d", log, i)
			require.Equal(t, plain.Digest(), replaced.Digest(), "log %d, entry %d", log, i)

			if previous != nil {
				require.Equal(t, previousWant, snapshotBytes(previous),
					"log %d: frozen before entry %d, written after it and the next", log, i-1)
			}
			previous, previousWant = next, before
		}
		require.Equal(t, machineSnapshot(plain), machineSnapshot(frozen), "log %d", log)
		require.Equal(t, machineSnapshot(plain), machineSnapshot(replaced), "log %d", log)
		require.NoError(t, frozen.Check())
	}
}

// A long way on from one snapshot.
func TestRestoreAtAnyEntry(t *testing.T) {
	seed := seedOf(t)
	for n := range sized(120, 60, 30) {
		pick := logChoice(seed, n)
		log := generateLog(pick, 1000)
		cut := pick(len(log))
		whole := fsm.New()
		for _, r := range log[:cut] {
			applyToJSON(t, whole, r)
		}
		rest := restored(t, machineSnapshot(whole))
		for i, r := range log[cut:] {
			require.Equal(t, applyToJSON(t, whole, r), applyToJSON(t, rest, r),
				"log %d cut at %d: entry %d", n, cut, cut+i)
		}
		require.Equal(t, whole.Digest(), rest.Digest(), "log %d cut at %d", n, cut)
		require.Equal(t, machineSnapshot(whole), machineSnapshot(rest), "log %d cut at %d", n, cut)
		require.NoError(t, rest.Check())
	}
}
