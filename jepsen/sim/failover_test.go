package sim

import (
	"errors"
	"fmt"
	"log/slog"
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
	"zamok/jepsen/workload"
	"zamok/raftnode"
	"zamok/session"
)

// How long a cluster is without a leader after a kill: until another node has committed an entry
// that was proposed after the kill, for which a read barrier waits.
func TestFailoverTime(t *testing.T) {
	kills := 200
	if testing.Short() {
		kills = 40
	}
	runStarted(t, Config{}, func(s *Sim, _ *Node) {
		random := s.Random("kills")
		h := s.Holder("holder", "x", 10*time.Second)
		median, p95 := s.failOvers(kills,
			func() time.Duration { return time.Second + workload.UpTo(random, time.Second) })
		assert.Less(s, median, 600*time.Millisecond)
		assert.Less(s, p95, 900*time.Millisecond)
		assert.True(s, s.Leader().holds("x", h), "a holder that renewed lost its lock")
		s.Check()
	})
}

// failOvers kills the leader and starts it again, so many times, each after an interval. It returns
// how long it took until a read barrier succeeded at another node.
func (s *Sim) failOvers(times int, interval func() time.Duration) (median, p95 time.Duration) {
	s.Helper()
	var took []time.Duration
	for range times {
		time.Sleep(interval())
		old, from := s.Leader(), s.Elapsed()
		old.Kill()
		var leader *Node
		s.Await(time.Minute, "a read barrier succeeds", func() bool {
			for _, leader = range s.Others(old) {
				if _, err := leader.ReadBarrier(s.Within(opTimeout)); err == nil {
					return true
				}
			}
			return false
		})
		took = append(took, s.Elapsed()-from)
		old.StartProcess()
		require.NoError(s, old.AwaitOpen(s.Within(time.Minute)))
		s.AwaitApplied(leader, old, time.Minute)
	}
	slices.Sort(took)
	median, p95 = took[len(took)/2], took[len(took)*95/100]
	s.Logf("%d failovers: median %v, p95 %v, longest %v", times, median, p95, took[len(took)-1])
	return median, p95
}

// slowAllLinks sets the one-way delay between all initial members.
func (s *Sim) slowAllLinks(delay time.Duration) {
	for _, n := range s.InitialMembers() {
		s.Network.SetDelay(delay, delay/10, s.routes(n.Host)...)
	}
}

// With 80 ms one way between the nodes, a round trip takes longer than a leader with the shortest
// timeout waits. The nodes lengthen their timeouts by themselves and then serve normally: without
// needless elections, and with failovers as long as these timeouts imply.
func TestHighLatencyClusterServes(t *testing.T) {
	t.Parallel()
	for name, delay := range map[string]time.Duration{"80 ms": 80 * time.Millisecond,
		"150 ms": 150 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			RunParallel(t, Config{Limit: time.Hour, AdaptiveTimeouts: true}, func(s *Sim) {
				s.slowAllLinks(delay)
				s.startProcesses()
				s.Await(time.Minute, "a leader lasts", func() bool {
					leads := s.Leaders()
					return len(leads) == 1 && leads[0].Status().Applied.Index > 3
				})
				time.Sleep(30 * time.Second) // all nodes get the same timeout
				epochs := s.Audit.Epochs()
				s.Logf("the nodes have timeouts of %v", s.timeouts())
				h := s.Holder("holder", "x", 10*time.Second)
				time.Sleep(10 * time.Minute)
				assert.Equal(s, epochs, s.Audit.Epochs(), "no election without a cause")
				assert.True(s, s.Leader().holds("x", h))
				median, _ := s.failOvers(10, func() time.Duration { return 10 * time.Second })
				assert.Less(s, median, 10*time.Second)
				assert.True(s, s.Leader().holds("x", h),
					"ten failovers cost no session that renews")
				h.Die()
				time.Sleep(2 * opTimeout) // calls in flight are answered
				s.Check()
			})
		})
	}
}

// Programs continue while the latency between nodes grows, and falls again.
func TestTimeoutAdaptsToLatencyIncrease(t *testing.T) {
	runStarted(t, Config{AdaptiveTimeouts: true}, func(s *Sim, _ *Node) {
		p := s.program("p", nil)
		cycles := func(d time.Duration) (done int, unlock error) {
			for began := s.Elapsed(); s.Elapsed()-began < d; done++ {
				unlock = errors.Join(unlock, s.lock(p, "x").Unlock(s.Within(time.Minute)))
			}
			return done, unlock
		}
		var logged strings.Builder
		short := func(c *client.Config) {
			c.TTL, c.Logger = 3*time.Second, slog.New(slog.NewTextHandler(&logged, nil))
		}
		q := s.program("q", short)
		require.NoError(s, s.lock(q, "q's").Unlock(s.Within(time.Minute)))
		near, err := cycles(10 * time.Second)
		require.NoError(s, err)
		s.slowAllLinks(80 * time.Millisecond)
		// an unlock may be unconfirmed until all nodes have the same timeout
		_, _ = cycles(time.Minute)
		before := s.Leader().Running().Status().Term
		far, err := cycles(time.Minute)
		require.NoError(s, err)
		require.Equal(s, before, s.Leader().Running().Status().Term, "no election without a cause")
		require.NoError(s, s.Leader().Running().Transfer(s.Within(time.Minute), ""))
		s.lock(q, "q's again")
		synctest.Wait()
		require.Contains(s, logged.String(),
			"ttl is too short for the cluster's election timeout now",
			"a session that has one is notified")
		require.Contains(s, logged.String(), "at_least=4")
		notified := strings.Count(logged.String(), "at_least=4")
		r := s.lock(s.program("r", short), "r's")
		synctest.Wait()
		require.Greater(s, strings.Count(logged.String(), "at_least=4"), notified,
			"so is one that begins")
		require.NoError(s, r.Unlock(s.Within(time.Minute)))
		s.Logf("%d cycles a second near each other, %.1f with 80 ms between", near/10,
			float64(far)/60)
		require.Greater(s, far, 60*2, "a cycle is two round trips of 160 ms")
		s.Network.HealAll()
		time.Sleep(8 * time.Minute)
		_, err = cycles(time.Second)
		require.NoError(s, err)
		for _, n := range s.InitialMembers() {
			require.Less(s, n.Running().Timeout(), time.Second, "they become shorter again")
		}
	})
}

// When the timeouts change, up or down, streams and leadership stay as they are.
func TestAChangeOfTheTimeoutsCutsNoStream(t *testing.T) {
	runStarted(t, Config{AdaptiveTimeouts: true}, func(s *Sim, leader *Node) {
		var clients []*client.Lock
		for i := range 5 {
			clients = append(clients,
				s.lock(s.program(fmt.Sprint("p", i), nil), fmt.Sprint("x", i)))
		}
		attachments := func() (all []uint64) {
			leader.Running().View(func(m *fsm.Machine) {
				for _, live := range m.Sessions(0, len(clients)+1) {
					all = append(all, live.Attachment)
				}
			})
			return all
		}
		time.Sleep(time.Minute) // a stream that began through another node moves to the leader
		attached, term := attachments(), leader.Status().Term
		require.Len(s, attached, len(clients))
		for _, want := range []time.Duration{time.Second, 250 * time.Millisecond} {
			if s.Network.HealAll(); want == time.Second {
				// so slowly that the leader is never lost
				for delay := 10; delay <= 80; delay += 10 {
					s.slowAllLinks(time.Duration(delay) * time.Millisecond)
					time.Sleep(10 * time.Second)
				}
			}
			s.Await(10*time.Minute, "all have the timeout", func() bool {
				return !slices.ContainsFunc(s.timeouts(),
					func(t time.Duration) bool { return t != want })
			})
			require.Equal(s, attached, attachments())
			require.Equal(s, term, leader.Status().Term)
		}
		for _, lock := range clients {
			require.NoError(s, lock.Unlock(s.Within(time.Minute)))
		}
	})
}

// The state machine's shortest ttl works with any election timeout: a session that renews keeps its
// locks.
func TestAShortTTLBesideALongTimeout(t *testing.T) {
	long := func(c *raftnode.Config) { c.ElectionTimeout = 2 * time.Second }
	runStarted(t, Config{Tune: long}, func(s *Sim, leader *Node) {
		require.Equal(s, 2*time.Second, leader.Running().Timeout())
		p := s.program("p", func(c *client.Config) { c.TTL = client.TTLMin })
		held := s.lock(p, "x")
		time.Sleep(time.Minute)
		require.NoError(s, held.Unlock(s.Within(time.Minute)))
		locker := p.Locker(s.Within(time.Minute), "x")
		locker.Lock()
		time.Sleep(time.Second)
		locker.Unlock()
	})
}

func (s *Sim) timeouts() (all []time.Duration) {
	for _, n := range s.InitialMembers() {
		if up := n.Running(); up != nil {
			all = append(all, up.Timeout())
		}
	}
	return all
}

// withSmallLogs makes nodes take snapshots soon, so that a node that was down needs one.
func withSmallLogs(c *raftnode.Config) {
	c.SnapshotEntries, c.SnapshotEvery = smallLog, time.Second
}

// backoffMax is how long raft may wait before it contacts a node again that was unreachable.
const backoffMax = 11 * time.Second

// A follower that was away for long catches up by a snapshot, restarts from it, and serves when the
// leader dies: with data in memory and on disk. The snapshot replaces its whole log, because
// segments can't have gaps.
func TestLaggingFollowerInstallsSnapshotUnderLoad(t *testing.T) {
	t.Parallel()
	for _, onDisk := range []bool{false, true} {
		tune := func(c *raftnode.Config) {
			withSmallLogs(c)
		}
		Run(t, Config{OnDisk: onDisk, Tune: tune}, func(s *Sim) {
			leader := s.Start()
			load := s.lightLoad()
			for _, how := range []string{"killed", "cut off"} {
				away := s.Others(leader)[0]
				_, before := s.Audit.Compared()
				if how == "killed" {
					away.Kill()
				} else {
					s.Network.Isolate(away.Host)
				}
				missed := leader.Status().RaftIndex
				s.Await(time.Minute, "a log of which the leader keeps only what the follower lacks",
					func() bool {
						return leader.Status().RaftIndex > missed+4*smallLog
					})
				// raft checks every one to two seconds whether a snapshot is due
				time.Sleep(3 * time.Second)
				s.Network.HealAll()
				if how == "killed" {
					away.Start()
				}
				leader = s.Leader()
				s.AwaitApplied(leader, away, backoffMax)
				_, after := s.Audit.Compared()
				installed := s.Trace.Has(away.ID, "Installed remote snapshot")
				assert.True(s, installed && after > before,
					"%s: it caught up without a snapshot", how)
				away.Kill() // its log has a hole now, where the snapshot is
				away.Start()
				s.AwaitApplied(leader, away, backoffMax)
				leader.Kill()
				next := s.LeaderOtherThan(leader)
				leader.Start()
				s.AwaitApplied(next, leader, backoffMax)
				leader = next
			}
			load.Stop()
			s.AwaitCounts(10*time.Second, fsm.Counts{})
			s.Check()
		})
	}
}

// While a follower installs a snapshot, its raft main loop does nothing else, however long that
// takes. Its watchdog and the other nodes must wait.
func TestSlowSnapshotInstall(t *testing.T) {
	t.Parallel()
	const takes = 20 * time.Second
	for _, slow := range []string{"link", "disk"} {
		tune := func(c *raftnode.Config) { c.SnapshotEntries, c.SnapshotEvery = 900, time.Second }
		Run(t, Config{Tune: tune}, func(s *Sim) {
			leader := s.Start()
			away := s.Others(leader)[0]
			away.Kill()
			for i := range 1000 { // 4 MB
				leader.MustPropose(&fsm.OpenSession{Secret: session.Hash{byte(i), byte(i >> 8)},
					Settings: session.Settings{TTL: clock.Hour,
						Meta: strings.Repeat("m", fsm.MetaBytesMax)}})
			}
			load := s.Load(1, time.Second)
			time.Sleep(20 * time.Second)
			size := 1000 * fsm.MetaBytesMax
			switch slow {
			case "link":
				s.Network.LimitRate(leader.Host, away.Host, size/int(takes/time.Second))
			case "disk":
				away.Disk.SlowSnapshots(takes / time.Duration(size/(32<<10)))
			}
			away.Start()
			began := s.Elapsed()
			s.Await(time.Minute, "the snapshot is installed", func() bool {
				return s.Trace.Has(away.ID, "Installed remote snapshot")
			})
			took := s.Elapsed() - began
			s.Network.HealAll()
			s.AwaitApplied(leader, away, backoffMax)
			s.Logf("slow %s: installed after %v", slow, took)
			assert.Greater(s, took, takes*3/4, "slow %s: it was not slow", slow)
			assert.False(s, s.Trace.Has(away.ID, "stuck"), "slow %s: the watchdog ended it", slow)
			requireNoExit(s, s.InitialMembers())
			assert.Equal(s, 1, s.Audit.Epochs(),
				"slow %s: the cluster elected another leader", slow)
			load.Stop()
			s.Check()
		})
	}
}
