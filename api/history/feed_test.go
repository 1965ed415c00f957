package history

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
)

// An entry wakes the watches whose prefix it touches, and no others.
func TestAnEntryWakesOnlyItsWatches(t *testing.T) {
	r := New()
	touched, others := []string{"", "a", "a/", "a/1", "ab", "abc"},
		[]string{"a/1/", "a/2", "a0", "abb", "abcd", "b", "\xff"}
	var woken, asleep []*Watch
	for _, prefix := range others {
		asleep = append(asleep, mustWatch(t, r, prefix, 0), mustWatch(t, r, prefix, 0))
	}
	for _, prefix := range touched {
		woken = append(woken, mustWatch(t, r, prefix, 0), mustWatch(t, r, prefix, 0))
	}
	entry(r, 1, "a/1", "abc")
	deliverAll(r)
	for _, w := range woken {
		assert.Len(t, w.wake, 1, w.feed.under.text)
	}
	for _, w := range asleep {
		assert.Empty(t, w.wake, w.feed.under.text)
		assert.Nil(t, w.take())
	}
}

// However prefixes nest, come and go while names are touched: all prefixes of a name are found, and
// only these.
func TestTouchedAreThePrefixesOfAName(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	word := func(longest int) (text string) {
		for range random.IntN(longest + 1) {
			text += string("ab"[random.IntN(2)])
		}
		return text
	}
	for range 200 {
		r, watches, names := New(), map[string]*Watch{}, map[string]bool{}
		for index := range uint64(40) {
			switch prefix := word(5); {
			case random.IntN(2) == 0:
				name := word(7) + "c"
				names[name] = true
				entry(r, 1+index, name)
			case watches[prefix] == nil && len(names) == 0:
				watches[prefix] = mustWatch(t, r, prefix, 0)
			case watches[prefix] != nil:
				watches[prefix].End()
				delete(watches, prefix)
			default: // a prefix that comes now may be touched or not
				mustWatch(t, r, prefix, 0).End()
			}
		}
		for prefix, w := range watches {
			some := false
			for name := range names {
				some = some || strings.HasPrefix(name, prefix)
			}
			require.Equal(t, some, w.feed.under.first != 0, "%q of %q", prefix, names)
		}
	}
}

// A prefix that is watched while a longer one is touched misses nothing.
func TestAPrefixOfATouchedOneIsTouched(t *testing.T) {
	r := New()
	long := mustWatch(t, r, "a/1", 0)
	entry(r, 1, "a/1")
	short := mustWatch(t, r, "a", 0)
	entry(r, 2, "a/1")
	assert.Equal(t, []string{"2: a/1"}, readAll(short))
	assert.Equal(t, []string{"1: a/1", "2: a/1"}, readAll(long))
}

// Watches of one prefix that may be sent the same send the same message, also one that was behind.
func TestWatchesShareWhatTheySend(t *testing.T) {
	r := New()
	entry(r, 1, "a")
	entry(r, 2, "a")
	one, two, behind, slow := mustWatch(t, r, "", 0), mustWatch(t, r, "", 0),
		mustWatch(t, r, "", 1), mustWatch(t, r, "", 0)
	other, err := r.Watch(t.Context(), "", 0, "alice", everything)
	require.NoError(t, err)
	defer other.End()
	assert.Equal(t, []string{"2: a"}, readAll(behind))
	next := func(index uint64) *batch {
		entry(r, index, "a")
		deliverAll(r)
		b := one.take()
		require.NotNil(t, b)
		for _, w := range []*Watch{two, behind} {
			assert.Same(t, b, w.take())
		}
		assert.NotSame(t, b, other.take(), "another caller may see other names")
		return b
	}
	first, second := next(3), next(4)
	assert.Same(t, first, slow.take(), "frames are kept a little")
	assert.Same(t, second, slow.take())
	for index := range uint64(keptMax + 5) {
		next(5 + index)
	}
	assert.Equal(t, 1+keptMax, len(takeAll(slow)), "what is not kept comes in one frame of its own")
	last := next(100)
	assert.Same(t, last, slow.take())
}

// When the rules change, nothing is sent that was made under others.
func TestABatchDoesNotOutliveItsRules(t *testing.T) {
	r, hidden := New(), ""
	view := func() (any, func(string) bool) {
		return hidden, func(name string) bool { return name != hidden }
	}
	w, err := r.Watch(t.Context(), "", 0, "alice", view)
	require.NoError(t, err)
	defer w.End()
	entry(r, 1, "a", "b")
	entry(r, 2, "b")
	deliverAll(r)
	hidden = "b"
	assert.Equal(t, []string{"1: a"}, readAll(w))
	entry(r, 3, "b", "c")
	assert.Equal(t, []string{"3: c"}, readAll(w))
}

// What happens while a watch sends comes in one frame, of a bounded size.
func TestFramesGrowUnderLoad(t *testing.T) {
	r := New()
	w := mustWatch(t, r, "", 0)
	for index := range uint64(1000) {
		entry(r, 1+index, "a", "b")
	}
	frames := takeAll(w)
	assert.Less(t, len(frames), 20)
	events := 0
	for _, f := range frames {
		events += len(f.Events)
		assert.Equal(t, f.Events[len(f.Events)-1].Index, f.Index)
		assert.Zero(t, len(f.Events)%2, "all events of one index are in one frame")
		assert.LessOrEqual(t, len(f.Events)*(eventBytes+itemBytes), frameBytesMax)
	}
	assert.Equal(t, 2000, events)
}

// A watch is sent its index every 15 seconds, whatever happens under other prefixes, or that it may
// not see.
func TestAQuietWatchIsSentItsIndexAtABeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		times := func(apply func(r *History, index uint64)) (at []time.Duration) {
			r := New()
			stopping := make(chan struct{})
			var running sync.WaitGroup
			running.Go(func() { r.Run(stopping) })
			ctx, cancel := context.WithCancel(t.Context())
			w, err := r.Watch(ctx, "a/", 0, "alice", func() (any, func(string) bool) {
				return nil, func(name string) bool { return !strings.HasPrefix(name, "a/secret") }
			})
			require.NoError(t, err)
			begun := time.Now()
			running.Go(func() {
				_ = w.Send(func(any) error {
					at = append(at, time.Since(begun))
					return nil
				})
			})
			for index := range uint64(9000) {
				time.Sleep(10 * time.Millisecond)
				apply(r, 1+index)
			}
			cancel()
			close(stopping)
			running.Wait()
			w.End()
			return at
		}
		var idle []time.Duration
		for beat := range 6 {
			idle = append(idle, time.Duration(beat)*beatEvery)
		}
		assert.Equal(t, idle, times(func(*History, uint64) {})[:6])
		assert.Equal(t, idle,
			times(func(r *History, index uint64) { entry(r, index, strings.Repeat("b", 500)) })[:6])
		assert.Equal(t, idle,
			times(func(r *History, index uint64) { entry(r, index, "a/secret", "x") })[:6])
	})
}

// happened is an event at one name.
type happened struct {
	index uint64
	name  string
}

// checkedWatch is a watch with what it sent and what it is to send.
type checkedWatch struct {
	*Watch
	sees       func(name string) bool
	sent, want []happened
	at         uint64 // the index of the last frame
}

// add records what happened.
func (w *checkedWatch) add(e happened) {
	if w.sees(e.name) {
		w.want = append(w.want, e)
	}
}

// send sends a frame, if there is one.
func (w *checkedWatch) send(t *testing.T) bool {
	b := w.take()
	if b == nil {
		return false
	}
	f := decoded(b)
	require.GreaterOrEqual(t, f.Index, w.at)
	w.at = f.Index
	for _, e := range f.Events {
		require.LessOrEqual(t, e.Index, f.Index)
		for _, it := range e.Items {
			w.sent = append(w.sent, happened{e.Index, it.Name})
		}
	}
	if len(w.sent) < len(w.want) && w.want[len(w.sent)].index <= w.at {
		t.Fatalf("index %d was sent before %v was sent", w.at, w.want[len(w.sent)])
	}
	return true
}

// In whatever order entries, watches and their sending come: each event that a watch may see is
// sent once, in order, and no index is sent before its events.
func TestWatchesMissNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // so no reading takes time, and nothing rests
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		for round := range uint64(15) {
			checkWatches(t, rand.New(rand.NewPCG(seed, round)))
		}
	})
}

// checkWatches has everything happen in an order by chance.
func checkWatches(t *testing.T, random *rand.Rand) {
	r, all := New(), []happened{}
	rules, index := 1, uint64(0)
	var watches []*checkedWatch
	begin := func() {
		prefix, who := []string{"", "a/", "b/", "a/1"}[random.IntN(4)],
			[]string{"", "root"}[random.IntN(2)]
		from := random.Uint64N(index + 1)
		w := &checkedWatch{sees: func(name string) bool {
			return strings.HasPrefix(name, prefix) &&
				(who == "root" || !strings.Contains(name, "secret"))
		}}
		var err error
		w.Watch, err = r.Watch(t.Context(), prefix, from, who,
			func() (any, func(string) bool) { return rules, w.sees })
		require.NoError(t, err)
		for _, e := range all {
			if from != 0 && e.index > from {
				w.add(e)
			}
		}
		watches = append(watches, w)
	}
	apply := func() {
		index += 1 + random.Uint64N(2)
		var names []string
		for range random.IntN(3) {
			names = append(names, []string{"a/1", "a/2", "b/1", "b/secret",
				strings.Repeat("a/long", 70)}[random.IntN(5)])
		}
		if random.IntN(20) == 0 {
			names = append(names, slices.Repeat([]string{"a/many"}, 300)...)
		}
		entry(r, index, names...)
		for _, name := range names {
			all = append(all, happened{index, name})
			for _, w := range watches {
				w.add(happened{index, name})
			}
		}
	}
	for range 600 {
		switch action := random.IntN(100); {
		case action < 40:
			apply()
		case action < 50 && len(watches) < 12:
			begin()
		case action < 60 && len(r.wake) > 0:
			<-r.wake
			r.deliver()
		case action < 62:
			r.beat()
		case action < 64:
			rules++
		case len(watches) > 0:
			i := random.IntN(len(watches))
			watches[i].send(t)
			if action == 99 {
				watches[i].End()
				watches = slices.Delete(watches, i, i+1)
			}
		}
	}
	for some := true; some; some = some || len(r.wake) > 0 {
		deliverAll(r)
		some = false
		for _, w := range watches {
			some = w.send(t) || some
		}
	}
	for _, w := range watches {
		require.NoError(t, w.Err())
		require.Equal(t, w.want, w.sent)
		w.End()
	}
	require.Empty(t, r.prefixes)
	require.Zero(t, r.kept.Load())
}

// What feeds keep is bounded together, however many prefixes are watched; a watch that needs more
// reads for itself.
func TestWhatFeedsKeepIsBounded(t *testing.T) {
	r := New()
	name := strings.Repeat("x", fsm.NameBytesMax)
	var watches []*Watch
	for i := range 100 {
		watches = append(watches, mustWatch(t, r, name[:i], 0))
	}
	most := int64(0)
	for index := range uint64(40) {
		names := make([]string, 70)
		for i := range names {
			names[i] = name
		}
		entry(r, 1+index, names...)
		deliverAll(r)
		for _, w := range watches[1:] { // the first sends nothing
			w.take()
		}
		most = max(most, r.kept.Load())
	}
	assert.Greater(t, most, int64(keptBytesMax))
	assert.Less(t, most, int64(keptBytesMax+100*frameBytesMax+frameBytesMax))
	assert.Len(t, readAll(watches[0]), 40)
}

// processTime is what this process has used of the processors.
func processTime(b *testing.B) time.Duration {
	var r syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &r))
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// BenchmarkWatches is what an entry costs beside watches: under the state machine's lock, and all
// of it.
func BenchmarkWatches(b *testing.B) {
	for _, watched := range []struct {
		name, prefix string
		count        int
	}{{"none", "", 0}, {"other", "zzz", 768}, {"all", "", 768}} {
		b.Run(watched.name, func(b *testing.B) {
			r, stopping := New(), make(chan struct{})
			var running sync.WaitGroup
			running.Go(func() { r.Run(stopping) })
			ctx, cancel := context.WithCancel(b.Context())
			for range watched.count {
				w, err := r.Watch(ctx, watched.prefix, 0, "", everything)
				require.NoError(b, err)
				running.Go(func() {
					defer w.End()
					if err := w.Send(func(any) error { return nil }); wire.Explain(err).Code() ==
						zamokpb.Code_CODE_COMPACTED {
						b.Error(err)
					}
				})
			}
			applied := fsm.Applied{
				Events: []fsm.Event{{Kind: fsm.EvGranted,
					Items: []fsm.Item{{Name: "a/1", Mode: fsm.Exclusive}}}}}
			var locked []time.Duration
			used := processTime(b)
			index := uint64(0)
			for b.Loop() {
				index++
				applied.Stamp, applied.Events[0].Index = clock.Stamp{Index: index}, index
				begun := time.Now()
				r.Applied(applied)
				locked = append(locked, time.Since(begun))
				if index%10 == 0 {
					time.Sleep(time.Millisecond) // entries come at 10 000 a second or fewer
				}
			}
			slices.Sort(locked)
			b.ReportMetric(float64(locked[len(locked)/2]), "median-locked-ns/op")
			b.ReportMetric(float64(processTime(b)-used)/float64(len(locked)), "cpu-ns/op")
			cancel()
			close(stopping)
			running.Wait()
		})
	}
}
