package sim

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/fsm"
	"zamok/jepsen/check"
)

// The watchdog ends a run in which virtual time stands, and prints all stacks.
func TestWatchdogAbortsStuckRun(t *testing.T) {
	t.Parallel()
	var why atomic.Pointer[string]
	stands, spins := &watchdog{pollInterval: 10 * time.Millisecond, missedMax: 10},
		make(chan struct{})
	stands.abort = func(string) {
		<-spins // a busy machine may not have come to the story yet
		text := stands.diagnose()
		why.Store(&text)
	}
	run(t, Config{}, stands, func(s *Sim) {
		s.Trace.Logf("story", "the last step of the story")
		close(spins)
		for why.Load() == nil {
			runtime.Gosched() // no virtual time passes
		}
	})
	assert.Contains(t, *why.Load(), "virtual time stands")
	assert.Contains(t, *why.Load(), "TestWatchdogAbortsStuckRun.func", "the stacks show what spins")
	assert.Contains(t, *why.Load(), "the last step of the story")
}

// Two transfers of leadership at once, from a node whose disk hangs, wait for the disk and for one
// another. Virtual time continues meanwhile, as real time does, and both return.
func TestRepeatedTransferWithHangingDisk(t *testing.T) {
	runStarted(t, Config{}, func(s *Sim, _ *Node) {
		leader := s.Leader()
		up := leader.Running()
		leader.Disk.Stall()
		var back atomic.Int32
		for range 2 {
			go func() {
				defer back.Add(1)
				_ = up.Transfer(s.Within(2*time.Second), "") // it may fail
			}()
		}
		next := s.LeaderOtherThan(leader)
		time.Sleep(hangDuration)
		assert.Zero(s, back.Load(), "its raft ends when its disk continues, and not before")
		leader.Disk.Resume()
		s.Await(electionTimeMax, "both transfers return", func() bool { return back.Load() == 2 })
		s.AwaitApplied(next, leader, backoffMax)
		s.Check()
	})
}

// Time is lost at a change of leader, from the last entry of the old epoch on. A delay within an
// epoch loses none.
func TestStallClassification(t *testing.T) {
	t.Parallel()
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	entry := func(at int) Effect { return Effect{At: ms(at)} }
	epoch := func(at int) Effect {
		return Effect{At: ms(at),
			Applied: fsm.Applied{Events: []fsm.Event{{Kind: fsm.EvEpochStarted}}}}
	}
	held := func(from, to int) check.Stall {
		return check.Stall{Reason: "no commit", From: historyBegin + ms(from),
			To: historyBegin + ms(to), CommitsBlocked: true}
	}
	change := func(from, to int) check.Stall {
		return check.Stall{
			Reason: "change of leader", From: historyBegin + ms(from), To: historyBegin + ms(to),
			LostTime: ms(to-from) + time.Second,
		}
	}
	type entries = []Effect
	type stalls = []check.Stall
	for name, c := range map[string]struct {
		entries entries
		want    stalls
	}{
		"an entry a second": {entries{entry(0), entry(1000), entry(2000)}, nil},
		"nothing is committed for a while": {entries{entry(0), entry(5000), entry(5010)},
			stalls{held(0, 5000)}},
		"a change": {entries{entry(0), entry(500), epoch(900)},
			stalls{change(500, 900)}},
		"the last two entries were held up": {entries{entry(0), entry(3000), entry(3001),
			epoch(3500)}, stalls{held(0, 3000), change(0, 3500)}},
		"it was held up long before": {entries{entry(0), entry(3000), entry(3001),
			entry(3002), epoch(3500)}, stalls{held(0, 3000), change(3002, 3500)}},
		"one change after the other": {entries{entry(0), epoch(3000), epoch(6000)},
			stalls{change(0, 3000), change(3000, 6000)}},
	} {
		assert.Equal(t, c.want, clusterTimeStalls(c.entries), name)
	}
}

// A bubble has no wall clock that a test could make jump. So this test reads the source: no code
// uses the wall clock of a time.Time, except where a new history takes a number from it that is
// above all older ones', and where a metric has the expiry of a certificate. Differences of
// time.Now are monotonic.
func TestNoWallClockReads(t *testing.T) {
	t.Parallel()
	use, mayRead, found := regexp.MustCompile(`(\w*)\.Unix\w*`),
		map[string]int{"raftnode/restore.go": 1, "api/metrics/metrics.go": 1}, map[string]int{}
	files, tree := 0, os.DirFS(filepath.Join("..", ".."))
	for _, root := range []string{"clock", "session", "fsm", "raftnode", "api", "client"} {
		require.NoError(t, fs.WalkDir(tree, root,
			func(path string, _ fs.DirEntry, err error) error {
				if err != nil || !strings.HasSuffix(path, ".go") ||
					strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, ".pb.go") {
					return err
				}
				files++
				text, err := fs.ReadFile(tree, path)
				for line := range strings.Lines(string(text)) {
					code, _, _ := strings.Cut(line, "//")
					for _, match := range use.FindAllStringSubmatch(code, -1) {
						if match[1] != "unix" && match[1] != "net" { // those are packages
							found[path]++
						}
					}
				}
				return err
			}))
	}
	assert.Greater(t, files, 80)
	assert.Equal(t, mayRead, found, "in %v", slices.Sorted(maps.Keys(found)))
}

// A history is made while a node applies entries: each needs a lock of the other. There are as many
// entries as histories: a node at full speed would make each history longer than the one before.
func TestHistoryBesideAppliedEntries(t *testing.T) {
	RunParallel(t, Config{}, func(s *Sim) {
		steps, ended := make(chan struct{}, 10), make(chan struct{})
		go func() {
			defer close(ended)
			m, e := fsm.New(), fsm.Applied{}
			for range steps {
				s.Audit.applied("n1", m, e)
				e.Index, e.Stamp.Index = e.Index+1, e.Stamp.Index+1
			}
		}()
		for range 2000 {
			steps <- struct{}{}
			s.record.history(check.Plan{})
		}
		close(steps)
		<-ended
	})
}

// A request over HTTP may be granted and given up in one entry: no state ever shows its session.
func TestHistoryKnowsWhoseSessionEndedInTheEntryOfItsGrant(t *testing.T) {
	RunParallel(t, Config{}, func(s *Sim) {
		m := fsm.New()
		const first = 2 // the index of the first command
		open := openSession("a secret", time.Minute)
		open.Label = "h1"
		entry := fsm.Entry{Version: m.Version(), Commands: []fsm.Command{
			open, acquireExclusive(first, 1, "w1"), &fsm.CloseSession{Session: first},
		}}
		applied, err := m.Apply(1, entry.Append(nil))
		require.NoError(s, err)
		s.Audit.applied("n1", m, applied)
		s.record.put(check.Record{Op: &check.Op{Client: "h1", Kind: check.OpLock,
			Items: []check.Item{{Name: "w1", Mode: check.Exclusive}}, Call: historyBegin - 1,
			Return: historyBegin + time.Minute, Outcome: check.Unknown}})
		h := s.record.history(check.Plan{})
		require.True(s, slices.ContainsFunc(h.Ops, func(op check.Op) bool {
			return op.Client == "h1" && op.Ref == check.Ref{Session: first, Ticket: 1}
		}), "%+v", h.Ops)
	})
}
