package store

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"github.com/stretchr/testify/require"
)

// BenchmarkAppend appends entries as raft does, to the log and to raft-boltdb in turns, so that
// what else the disk does meets both: 1 or 16 entries of 2 or 16 KiB a write, and the front deleted
// now and then. It prints the median, the 99th percentile and the longest write; a new segment is
// begun every thousand writes or so.
func BenchmarkAppend(b *testing.B) {
	for _, load := range []struct{ entries, bytes int }{{1, 200}, {1, 8 << 10}, {16, 8 << 10}} {
		b.Run(fmt.Sprintf("entries=%d/bytes=%d", load.entries, load.bytes), func(b *testing.B) {
			kinds := []string{"store", "raft-boltdb"}
			plain, err := raftboltdb.NewBoltStore(filepath.Join(b.TempDir(), "raft.db"))
			require.NoError(b, err)
			defer plain.Close()
			logs := []raft.LogStore{open(b, Config{Dir: b.TempDir()}).Logs(), plain}
			const kept = 4096
			took := make([][]time.Duration, len(kinds))
			next := uint64(1)
			for b.Loop() {
				batch := entries(1, next, next+uint64(load.entries)-1)
				for _, entry := range batch {
					entry.Data = make([]byte, load.bytes)
					entry.Extensions = Checksum(entry.Data)
				}
				for i, log := range logs {
					began := time.Now()
					require.NoError(b, log.StoreLogs(batch))
					took[i] = append(took[i], time.Since(began))
				}
				next += uint64(load.entries)
				if next%(2*kept) < uint64(load.entries) && next > kept {
					for _, log := range logs {
						require.NoError(b, log.DeleteRange(1, next-kept))
					}
				}
			}
			for i, kind := range kinds {
				slices.Sort(took[i])
				of := func(share int) float64 {
					return float64(took[i][(len(took[i])-1)*share/100].Microseconds())
				}
				b.ReportMetric(of(50), "µs-"+kind)
				b.ReportMetric(of(99), "µs-p99-"+kind)
				b.ReportMetric(of(100), "µs-max-"+kind)
			}
		})
	}
}
