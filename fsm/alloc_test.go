package fsm

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Ceilings of what applying allocates, decoding included. The trees' own nodes come and go in the
// middle of a measurement, so a ceiling has room for one in a few commands, and for no more.
func TestApplyAllocations(t *testing.T) {
	for _, c := range []struct {
		name      string
		allocsMax float64 // for each operation
		entries   func(b *benchHarness, i int) []byte
	}{
		{"a pair of acquire and drop", 3.2,
			func(b *benchHarness, i int) []byte { return b.encodePairs(nil, i*pairsPerEntry) }},
		{"a waiter that comes and goes", 2.2, func(b *benchHarness, _ int) []byte {
			e := Entry{Version: 1}
			for range pairsPerEntry {
				a := b.acquire("wanted")
				e.Commands = append(e.Commands, a,
					&Drop{Session: a.Session, Ticket: a.Ticket, AckedThrough: a.Ticket})
			}
			return e.Append(nil)
		}},
		{"a renewal", 0.1, func(b *benchHarness, _ int) []byte {
			e := Entry{Version: 1, Renewals: b.sessions[:pairsPerEntry]}
			return e.Append(nil)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			const runs, warmup = 50, 20
			b := newBenchHarness(t, 1000)
			b.holdLocks(t, 1000)
			b.mustApply(t, b.entry(b.acquire("wanted")))
			var entries [][]byte
			for i := range runs + warmup + 1 {
				entries = append(entries, c.entries(b, i))
			}
			next := 0
			apply := func() {
				_, err := b.m.Apply(1, entries[next])
				require.NoError(t, err)
				next++
			}
			for range warmup {
				apply()
			}
			each := testing.AllocsPerRun(runs, apply) / pairsPerEntry
			assert.LessOrEqual(t, each, c.allocsMax, "allocations for each")
			t.Logf("%.2f allocations for each", each)
		})
	}
}
