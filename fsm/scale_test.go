package fsm

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/clock"
)

// What these benchmarks show is that a figure does not grow with the size in its name. Each is the
// cost of Apply with an entry of one command, or of Freeze.

var sizes = []int{1_000, 10_000, 100_000}

// BenchmarkHandOff drops a lock that size others wait for; the dropper queues up again, untimed.
func BenchmarkHandOff(bench *testing.B) {
	for _, size := range sizes {
		bench.Run(fmt.Sprintf("waiters=%d", size), func(bench *testing.B) {
			b := newBenchHarness(bench, size/500+1)
			queue := b.queue(bench, "x", size+1)
			for bench.Loop() {
				bench.StopTimer()
				holder := queue[0]
				entry := b.entry(&Drop{Session: holder.Session, Ticket: holder.Ticket,
					AckedThrough: 0})
				bench.StartTimer()
				b.mustApply(bench, entry)
				bench.StopTimer()
				queue = append(queue[1:], b.wait(bench, "x"))
				bench.StartTimer()
			}
		})
	}
}

// BenchmarkDropMiddleWaiter takes a waiter out of the middle of a queue of size; another one comes,
// untimed.
func BenchmarkDropMiddleWaiter(bench *testing.B) {
	for _, size := range sizes {
		bench.Run(fmt.Sprintf("waiters=%d", size), func(bench *testing.B) {
			b := newBenchHarness(bench, size/500+1)
			queue := b.queue(bench, "x", size+1)
			next := size / 2
			for bench.Loop() {
				bench.StopTimer()
				dropped := queue[next]
				entry := b.entry(&Drop{Session: dropped.Session, Ticket: dropped.Ticket,
					AckedThrough: 0})
				bench.StartTimer()
				b.mustApply(bench, entry)
				bench.StopTimer()
				queue[next] = b.wait(bench, "x")
				next = size/4 + (next+1)%(size/2)
				bench.StartTimer()
			}
		})
	}
}

// BenchmarkFreeze is how long a snapshot holds the machine up.
func BenchmarkFreeze(bench *testing.B) {
	for _, size := range []int{10_000, 100_000, 1_000_000} {
		bench.Run(fmt.Sprintf("held=%d", size), func(bench *testing.B) {
			b := newBenchHarness(bench, 1)
			b.holdLocks(bench, size)
			for bench.Loop() {
				b.m.Freeze()
			}
		})
	}
}

// BenchmarkPairsAfterFreeze is the cost of the first entry after a snapshot: 128 pairs, one
// operation is one pair.
func BenchmarkPairsAfterFreeze(bench *testing.B) {
	for _, size := range []int{10_000, 100_000, 1_000_000} {
		bench.Run(fmt.Sprintf("held=%d", size), func(bench *testing.B) {
			b := newBenchHarness(bench, 1000)
			b.holdLocks(bench, size)
			var entry []byte
			for i := 0; bench.Loop(); i++ {
				if i%pairsPerEntry == 0 {
					bench.StopTimer()
					entry = b.encodePairs(entry[:0], i)
					b.m.Freeze()
					bench.StartTimer()
					b.mustApply(bench, entry)
				}
			}
		})
	}
}

// BenchmarkExpire is one entry that finds size sessions due, with a lock each: it expires
// ExpirationsMax or a little less and leaves the rest for the next.
func BenchmarkExpire(bench *testing.B) {
	for _, size := range []int{2_000, 20_000, 200_000} {
		bench.Run(fmt.Sprintf("due=%d", size), func(bench *testing.B) {
			var b *benchHarness
			var left int
			for bench.Loop() {
				bench.StopTimer()
				if left < ExpirationsMax {
					b, left = newBenchHarness(bench, size), size
					for range size {
						b.apply(bench, b.acquire(fmt.Sprintf("lock/%d", b.next)))
					}
				}
				e := Entry{Version: 1,
					Reading: clock.Reading{Epoch: b.m.Epoch(), Now: clock.Time(2 * clock.Hour)}}
				entry := e.Append(nil)
				bench.StartTimer()
				a := b.mustApply(bench, entry)
				bench.StopTimer()
				left -= len(a.Events) / 2
				if n := len(a.Events); n > 2*(ExpirationsMax+TicketsMax) || n == 0 {
					bench.Fatalf("%d events", n)
				}
				bench.StartTimer()
			}
		})
	}
}

// BenchmarkSnapshot writes a whole snapshot, beside the machine.
func BenchmarkSnapshot(bench *testing.B) {
	b := newBenchHarness(bench, 1)
	b.holdLocks(bench, 1_000_000)
	for bench.Loop() {
		n, err := b.m.Freeze().WriteTo(io.Discard)
		require.NoError(bench, err)
		bench.SetBytes(n)
	}
}

// BenchmarkPairsBySessions is BenchmarkPairs by how many sessions take turns.
func BenchmarkPairsBySessions(bench *testing.B) {
	for _, sessions := range []int{10, 100, 1_000, 10_000, 100_000} {
		bench.Run(fmt.Sprint(sessions), func(bench *testing.B) {
			b := newBenchHarness(bench, sessions)
			var entry []byte
			for i := 0; bench.Loop(); i++ {
				if i%pairsPerEntry == 0 {
					bench.StopTimer()
					entry = b.encodePairs(entry[:0], i)
					bench.StartTimer()
					b.mustApply(bench, entry)
				}
			}
		})
	}
}

// BenchmarkMillionLocks is a machine with a million held locks and a hundred thousand sessions:
// what it takes of memory, for how long a snapshot stops it, and how long it takes to write one and
// to begin with it.
func BenchmarkMillionLocks(bench *testing.B) {
	before := liveHeapBytes()
	b := newBenchHarness(bench, 100_000)
	b.holdLocks(bench, 1_000_000)
	memory := liveHeapBytes() - before
	var pause, write, restore, check time.Duration
	rounds := 0
	for ; bench.Loop(); rounds++ {
		start := time.Now()
		frozen := b.m.Freeze()
		pause += time.Since(start)
		var snapshot bytes.Buffer
		start = time.Now()
		_, err := frozen.WriteTo(&snapshot)
		require.NoError(bench, err)
		write += time.Since(start)
		bench.ReportMetric(float64(snapshot.Len())/1e6, "MB-snapshot")
		start = time.Now()
		m, err := Restore(&snapshot)
		require.NoError(bench, err)
		restore += time.Since(start)
		start = time.Now()
		require.NoError(bench, m.Check())
		check += time.Since(start)
	}
	each := func(d time.Duration) float64 {
		return float64(d.Microseconds()) / 1e3 / float64(rounds)
	}
	bench.ReportMetric(float64(memory)/1e6, "MB")
	bench.ReportMetric(each(pause), "ms-pause")
	bench.ReportMetric(each(write), "ms-write")
	bench.ReportMetric(each(restore), "ms-restore")
	bench.ReportMetric(each(check), "ms-check")
}

// TestMemoryPerRecord states what a waiter, a held lock and a session cost. The bounds are loose:
// the figures are printed.
func TestMemoryPerRecord(t *testing.T) {
	if testing.Short() {
		t.Skip("measures memory with a hundred thousand of each")
	}
	const n = 100_000
	var b *benchHarness
	before := liveHeapBytes()
	b = newBenchHarness(t, n)
	sessions := liveHeapBytes()
	for i := range n {
		b.apply(t, b.acquire(fmt.Sprintf("account/%011d", i)))
	}
	held := liveHeapBytes()
	b.queue(t, "everybody wants this", n)
	waiting := liveHeapBytes()
	per := func(from, to uint64) float64 { return float64(to-from) / n }
	t.Logf("bytes per session %.0f, per held lock %.0f (with a name of 19 bytes), per waiter %.0f",
		per(before, sessions), per(sessions, held), per(held, waiting))
	require.Less(t, per(before, sessions), 600.0)
	require.Less(t, per(sessions, held), 600.0)
	require.Less(t, per(held, waiting), 450.0)
	runtime.KeepAlive(b)
}

func liveHeapBytes() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func (b *benchHarness) entry(commands ...Command) []byte {
	e := Entry{Version: 1, Reading: clock.Reading{Epoch: b.m.Epoch()}, Commands: commands}
	return e.Append(nil)
}

func (b *benchHarness) mustApply(tb testing.TB, entry []byte) Applied {
	a, err := b.m.Apply(1, entry)
	if err != nil || a.Refused != OK {
		tb.Fatalf("%v %+v", err, a)
	}
	return a
}

// wait queues up for a lock with the next session's next ticket.
func (b *benchHarness) wait(tb testing.TB, name string) *Acquire {
	c := b.acquire(name)
	if a := b.apply(tb, c); a.Results[0].Code != OK {
		tb.Fatalf("%+v", a.Results[0])
	}
	return c
}

// queue makes the lock held and size-1 others wait for it, and returns all of them in order.
func (b *benchHarness) queue(tb testing.TB, name string, size int) []*Acquire {
	var all []*Acquire
	for range size {
		all = append(all, b.wait(tb, name))
	}
	return all
}
