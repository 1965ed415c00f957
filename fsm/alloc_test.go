package fsm

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Ceilings of what applying allocates, decoding included. The trees' own nodes come and go in the middle of
// a measurement, so a ceiling has room for one in a few commands, and for no more.
func TestApplyingAllocatesLittle(t *testing.T) {
	for _, c := range []struct {
		what    string
		ceiling float64 // for each operation
		entries func(b *benchBed, i int) []byte
	}{
		{"a pair of acquire and drop", 3.2, func(b *benchBed, i int) []byte { return b.pairs(nil, i*pairsPerEntry) }},
		{"a waiter that comes and goes", 2.2, func(b *benchBed, _ int) []byte {
			e := Entry{Version: 1}
			for range pairsPerEntry {
				a := b.acquire("wanted")
				e.Commands = append(e.Commands, a, &Drop{Session: a.Session, Ticket: a.Ticket, AckedThrough: a.Ticket})
			}
			return e.Append(nil)
		}},
		{"a renewal", 0.1, func(b *benchBed, _ int) []byte {
			e := Entry{Version: 1, Renewals: b.sessions[:pairsPerEntry]}
			return e.Append(nil)
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			const runs, before = 50, 20
			b := newBenchBed(t, 1000)
			b.hold(t, 1000)
			b.must(t, b.entry(b.acquire("wanted")))
			var entries [][]byte
			for i := range runs + before + 1 {
				entries = append(entries, c.entries(b, i))
			}
			next := 0
			apply := func() {
				_, err := b.m.Apply(1, entries[next])
				require.NoError(t, err)
				next++
			}
			for range before {
				apply()
			}
			each := testing.AllocsPerRun(runs, apply) / pairsPerEntry
			assert.LessOrEqual(t, each, c.ceiling, "allocations for each")
			t.Logf("%.2f allocations for each", each)
		})
	}
}
