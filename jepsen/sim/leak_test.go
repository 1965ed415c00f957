package sim

import (
	"context"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/client"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
)

// leakTest is a cluster that repeats the same round, while two of its nodes and one program are
// never restarted: what a round leaves behind in them adds up. What a node forgets when the leader
// changes adds up only in rounds with one leader.
type leakTest struct {
	*Sim
	longLived        *program
	nodesUndisturbed bool            // no restart, no change of leader
	ctx              context.Context // ends with the round
}

func (w *leakTest) user(host string, change func(*client.Config)) *program {
	cfg := client.Config{Clock: clock.Runtime()} // the simulation's clock is not counted
	if change != nil {
		change(&cfg)
	}
	return w.newProgram(host, host, cfg)
}

// lock acquires a lock with the context of the round.
func (w *leakTest) lock(u *program, name string, opts ...client.Option) *client.Lock {
	w.Helper()
	l, err := u.Lock(w.ctx, name, opts...)
	require.NoError(w, err, "at %v", w.Elapsed())
	return l
}

// transferTo transfers the leadership to a node.
func (w *leakTest) transferTo(id string) {
	w.Helper()
	if !w.nodesUndisturbed {
		leaderOf(w.Sim, w.Node(id))
	}
}

// runRound opens sessions and ends them in every way: by a close, by their ttl and by an operator.
// They have grants, delays, watches, and waits that are granted, given up and refused. Meanwhile
// the leader changes, a node is restarted, and connections break.
func (w *leakTest) runRound() {
	var end context.CancelFunc
	w.ctx, end = context.WithTimeout(context.Background(), time.Minute)
	defer end()
	worker, victim := w.user("worker", nil), w.user("victim", func(c *client.Config) {
		c.TTL, c.LockDelay = 2*time.Second, 300*time.Millisecond
	})
	held := []*client.Lock{w.lock(worker, "a"), w.lock(worker, "b", client.Shared()),
		w.lock(worker, "c", client.Permits(1, 2))}
	all, err := worker.LockAll(w.ctx,
		[]client.Item{client.ExclusiveItem("d"), client.SharedItem("e")}, client.WithOwner("o"))
	require.NoError(w, err)
	held = append(held, all)
	w.lock(victim, "f")
	w.lock(victim, "g", client.WithMaxHold(time.Second))
	forced := w.lock(victim, "forced")
	_, err = victim.TryLock(w.ctx, "a")
	require.ErrorIs(w, err, client.ErrNotAcquired)
	ctx, cancel := context.WithTimeout(w.ctx, 200*time.Millisecond)
	_, err = victim.Lock(ctx, "a")
	require.ErrorIs(w, err, context.DeadlineExceeded)
	cancel()
	waits := w.begin(w.ctx, w.longLived, "f", client.OnPosition(func(client.Position) {}))
	parked, park := context.WithCancel(context.Background())
	dying := w.begin(parked, victim, "a")
	// whichever node serves them
	for _, u := range []*program{worker, worker, w.longLived, w.longLived} {
		w.watch(u)
	}
	d, err := w.longLived.Get(w.ctx, "forced", 10)
	require.NoError(w, err)
	require.NotEmpty(w, d.Held, "at %v, of %+v: %v", w.Elapsed(), d, forced.Err())
	_, err = w.longLived.admin().ForceRelease(w.ctx, "forced", d.Held[0].Token, "a test")
	require.NoError(w, err)

	w.transferTo("n2")
	worker.stack.closeConns()
	w.longLived.stack.closeConns()
	if !w.nodesUndisturbed {
		w.Node("n3").Kill()
		w.Node("n3").Start()
	}
	require.NoError(w, all.Downgrade(w.ctx))
	victim.stack.CloseAll()
	park()
	<-dying.done
	_ = victim.Close()                                     // nothing that it sends arrives
	held = append(held, w.awaitResult(waits, time.Minute)) // the victim's lock, after its delay
	for _, l := range held {
		require.NoError(w, l.Unlock(w.ctx))
	}
	w.transferTo("n1")
	require.NoError(w, worker.Close())
	worker.stack.CloseAll()
	w.AwaitCounts(time.Minute, fsm.Counts{Sessions: 1, Locks: 1, Granted: 1}) // the keeper's
	// what is idle is closed
	time.Sleep(2 * time.Second)
}

// watch watches a lock until it was acquired and released.
func (w *leakTest) watch(u *program) {
	w.Helper()
	go func() {
		time.Sleep(100 * time.Millisecond)
		x, err := u.Lock(w.ctx, "watched")
		if err == nil {
			_ = x.Unlock(w.ctx)
		}
	}()
	for moment, err := range u.Watch(w.ctx, "watched", 0) {
		require.NoError(w, err)
		if len(moment.Events) > 0 && moment.Events[0].Kind == client.EventReleased {
			return
		}
	}
	w.Errorf("a watch ended")
}

// No resource leaks: after many rounds every count is as after a few.
func TestNoResourceLeaks(t *testing.T) { // not in parallel: it counts what the process has
	t.Run("while leaders change", func(t *testing.T) { runLeakTest(t, false) })
	t.Run("under one leader", func(t *testing.T) { runLeakTest(t, true) })
}

func runLeakTest(t *testing.T, calm bool) {
	// The first rounds fill caches and pools: of the latest entries, of connections.
	const warm, window, between = 4, 3, 5
	rate := runtime.MemProfileRate
	defer func() { runtime.MemProfileRate = rate }()
	c := Config{Tune: func(c *raftnode.Config) {
		withSmallLogs(c)
		unaudited(c) // the audit would remember all of it
	}}
	if !calm {
		c.OnDisk = true // what a restart leaves open shows among the descriptors
	}
	Run(t, c, func(s *Sim) {
		w := &leakTest{Sim: s, nodesUndisturbed: calm}
		s.Start()
		w.longLived = w.user("keeper", nil)
		w.Cleanup(func() { _ = w.longLived.Close() })
		kept := s.lock(w.longLived, "kept")
		w.transferTo("n1")
		rounds := func(n int) {
			for range n {
				w.runRound()
			}
		}
		count := func() (seen []resourceCounts) {
			for range window {
				w.runRound()
				seen = append(seen, s.countResources())
			}
			return seen
		}
		rounds(warm - 1)
		runtime.MemProfileRate = 1 // a leak allocates in every round
		rounds(1)
		before := count()
		rounds(between)
		after := count()
		require.NoError(s, kept.Err())
		if more := growthBetween(before, after, between); len(more) > 0 {
			// A pool or a map may have grown by chance. A leak grows again.
			s.Logf("after %d more rounds there are more %q; counting again", between+1, more)
			rounds(between)
			last := count()[window-1]
			for _, line := range more {
				what, _, _ := strings.Cut(line, ": ")
				if is := last[what]; is-after[window-1][what] >= between {
					s.Errorf("after %d more rounds there are more %s, and %d after as many again",
						between+1, line, is)
				}
			}
		}
		last := after[window-1]
		assert.Greater(s, len(last), 50, "things that were counted")
		s.Logf("%d goroutines, %d kinds of things, in %v", last["goroutines"], len(last),
			s.Elapsed())
	})
}

// resourceCounts counts resources at one moment, by their names.
type resourceCounts map[string]int

// countResources counts what a run has: the contents of the state machines, goroutines,
// connections, descriptors, and live objects by the code that made them. It leaves out the objects
// of the simulation, which records what it sees. It waits until nothing is in progress.
func (s *Sim) countResources() resourceCounts {
	synctest.Wait()
	c := resourceCounts{}
	for _, n := range s.InitialMembers() {
		n.Running().View(func(m *fsm.Machine) {
			c["sessions at "+n.ID] = m.Counts().Sessions
			c["locks at "+n.ID] = m.Counts().Locks
			c["tickets that wait at "+n.ID] = m.Counts().Waiting
			c["delays at "+n.ID] = m.Counts().Delayed
		})
	}
	c["goroutines"] = runtime.NumGoroutine()
	s.Network.mu.Lock()
	c["listening ports"] = len(s.Network.listeners)
	for route, link := range s.Network.links {
		c["streams from "+route.from+" to "+route.to] = len(link.streams)
	}
	s.Network.mu.Unlock()
	c.addObjects()
	if open, err := os.ReadDir("/proc/self/fd"); err == nil { // where they are listed
		c["descriptors"] = len(open)
	}
	return c
}

// addObjects counts live objects by the function and line that made them, or that called the
// library which did. It leaves out the tiniest: several lie in one block, and keep each other
// alive.
func (c resourceCounts) addObjects() {
	runtime.GC() // a profile is as of the collection before the last one; pools are empty after two
	runtime.GC()
	runtime.GC()
	records := make([]runtime.MemProfileRecord, 1<<16)
	n, _ := runtime.MemProfile(records, false)
	for _, r := range records[:n] {
		if site, ours := allocationSite(r.Stack()); ours &&
			r.InUseBytes() > tinyObjectBytes*r.InUseObjects() {
			c["objects of "+site] += int(r.InUseObjects())
		}
	}
}

// tinyObjectBytes is the size up to which several objects share a block.
const tinyObjectBytes = 16

// allocationSite is the code in this module that allocated something. It leaves out what is kept
// only for a while: records of waiting goroutines, which the runtime collects; what packages fsm
// and record encode and decode, as the log and its cache hold the latest entries; and the contents
// of events, as the event history holds the latest.
func allocationSite(stack []uintptr) (site string, ours bool) {
	frames := runtime.CallersFrames(stack)
	for {
		f, more := frames.Next()
		switch {
		case f.Function == "runtime.acquireSudog",
			strings.HasSuffix(f.File, "/fsm/codec.go"), strings.Contains(f.File, "/fsm/record/"),
			slices.Contains([]string{"zamok/fsm.(*ticket).setItems",
				"zamok/fsm.(*Downgrade).execute", "zamok/fsm.(*Machine).refuseTicket",
				"zamok/api/history.(*History).Restored"}, f.Function):
			return "", false
		}
		if strings.HasPrefix(f.Function, "zamok/") {
			return fmt.Sprintf("%s:%d", f.Function, f.Line), !strings.HasPrefix(f.Function,
				"zamok/jepsen/")
		}
		if !more {
			return "", false
		}
	}
}

// growthBetween lists the counts that are greater at each later moment than at any earlier one, by
// at least by; counts of objects by at least twice that and half of what there was.
func growthBetween(before, after []resourceCounts, by int) (found []string) {
	for what := range after[0] {
		most, least := 0, math.MaxInt
		for _, c := range before {
			most = max(most, c[what])
		}
		for _, c := range after {
			least = min(least, c[what])
		}
		need := by
		if strings.HasPrefix(what, "objects") { // maps and pools grow a little at random
			need = 2*by + most/2
		}
		if least-most >= need {
			found = append(found, fmt.Sprintf("%s: %d, and %d before", what, least, most))
		}
	}
	slices.Sort(found)
	return found
}

func TestResourceGrowthIsDetected(t *testing.T) {
	before := []resourceCounts{{"a": 1, "b": 5}, {"a": 2, "b": 5}}
	after := []resourceCounts{{"a": 6, "b": 9, "c": 3}, {"a": 5, "b": 6, "c": 3}}
	assert.Equal(t, []string{"a: 5, and 2 before", "c: 3, and 0 before"},
		growthBetween(before, after, 3))
	assert.Empty(t, growthBetween(before, after, 4))
	assert.Empty(t, growthBetween([]resourceCounts{{}}, []resourceCounts{{"objects of x": 5}}, 3))
	assert.NotEmpty(t, growthBetween([]resourceCounts{{}},
		[]resourceCounts{{"objects of x": 6}}, 3))
}
