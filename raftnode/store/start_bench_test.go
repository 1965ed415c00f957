package store

import (
	"fmt"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// BenchmarkStart opens a directory whose log is as long as it gets: two snapshots' worth of
// entries. All of it is read and verified.
func BenchmarkStart(b *testing.B) {
	const length = 8192
	for _, bytes := range []int{200, 2 << 10} {
		b.Run(fmt.Sprintf("bytes=%d", bytes), func(b *testing.B) {
			cfg := Config{NodeID: "n1", Dir: b.TempDir(), Fatal: func(err error) { b.Error(err) }}
			st, err := Open(cfg)
			require.NoError(b, err)
			require.NoError(b, st.Votes().SetUint64([]byte(keyCurrentTerm), 1))
			for first := uint64(1); first < length; first += 64 {
				var batch []*raft.Log
				for index := first; index < first+64; index++ {
					batch = append(batch, &raft.Log{Index: index, Term: 1, Type: raft.LogNoop,
						Data: make([]byte, bytes)})
				}
				require.NoError(b, st.Logs().StoreLogs(batch))
			}
			require.NoError(b, st.Close())
			for b.Loop() {
				st, err := Open(cfg)
				require.NoError(b, err)
				require.NoError(b, st.Close())
			}
		})
	}
}
