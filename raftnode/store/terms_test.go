package store

import (
	"errors"
	"math"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// What a node may be measured against is the term that raft wrote last, also after a restart.
func TestTermIsTheOneLastWritten(t *testing.T) {
	onEach(t, func(t *testing.T, reopen func() *Store) {
		st := reopen()
		require.Zero(t, st.Term())
		require.NoError(t, st.Votes().SetUint64([]byte(keyCurrentTerm), 7))
		require.NoError(t, st.Votes().SetUint64([]byte(keyVoteTerm), 9)) // not the node's term
		require.Equal(t, uint64(7), st.Term())
		require.Equal(t, uint64(7), reopen().Term())
	})
}

// A node whose disk has an unreachable term does not start: raft would take it from there.
func TestTermsBeyondReasonAreRefused(t *testing.T) {
	snapshot := func(index, term uint64) func(*testing.T, *Store) {
		return func(t *testing.T, st *Store) {
			_, transport := raft.NewInmemTransport("n1")
			sink, err := st.Snapshots().Create(1, index, term, raft.Configuration{}, 0, transport)
			require.NoError(t, err)
			require.NoError(t, sink.Close())
		}
	}
	current := func(term uint64) func(*testing.T, *Store) {
		return func(t *testing.T, st *Store) {
			require.NoError(t, st.Votes().SetUint64([]byte(keyCurrentTerm), term))
		}
	}
	for name, c := range map[string]struct {
		write   func(*testing.T, *Store)
		refused bool
	}{
		"the last term of all":                  {current(math.MaxUint64), true},
		"the first that is too late":            {current(termMax + 1), true},
		"the last that is not":                  {current(termMax), false},
		"overflowed":                            {current(0), true},
		"a snapshot of this term":               {snapshot(2, 5), false},
		"a snapshot of a later term":            {snapshot(2, 6), true},
		"a snapshot of the last term of all":    {snapshot(2, math.MaxUint64), true},
		"a snapshot that reaches the end":       {snapshot(math.MaxUint64, 5), true},
		"a snapshot that reaches far, but less": {snapshot(indexMax, 5), false},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{NodeID: "n1", Dir: t.TempDir(), Fatal: func(err error) { t.Error(err) }}
			st := open(t, cfg)
			require.NoError(t, st.Votes().SetUint64([]byte(keyCurrentTerm), 5))
			require.NoError(t, st.Logs().StoreLogs(entries(5, 1, 1)))
			require.NoError(t, st.RecordCluster(NewID()))
			c.write(t, st)
			require.NoError(t, st.Close())
			st, err := Open(cfg)
			if c.refused {
				require.True(t, errors.Is(err, ErrLost) || errors.Is(err, ErrDamaged), "%v", err)
				t.Log(err)
				return
			}
			require.NoError(t, err)
			require.NoError(t, st.Close())
		})
	}
}
