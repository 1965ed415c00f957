package sim

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/fsm"
	"zamok/jepsen/workload"
	"zamok/raftnode"
	"zamok/session"
)

// The bound of a lease: a dead client's session ends within ttl + Σ over leader changes (leaderless
// time + 1 s) + what stalls cut off + a tick + a commit, and never earlier than the ttl after the
// sending of the last renewal that was answered.

// leaderChanges are leader changes that a story makes, and how much they may delay an expiration.
type leaderChanges struct {
	*Sim
	leader     *Node
	leaderless time.Duration
	times      int
}

// change makes another node lead.
func (c *leaderChanges) change(how func(old *Node)) (old *Node) {
	c.Helper()
	from := c.Elapsed()
	old = c.leader
	how(old)
	c.leader = c.LeaderOtherThan(old)
	c.leaderless += c.Elapsed() - from
	c.times++
	return old
}

func (c *leaderChanges) kill() { c.change((*Node).Kill).Start() }

func (c *leaderChanges) isolate() {
	c.change(func(old *Node) { c.Network.Isolate(old.Host) })
	c.Network.HealAll()
}

func (c *leaderChanges) transfer() {
	c.change(func(old *Node) {
		require.NoError(c, old.Running().Transfer(c.Within(electionTimeMax), ""))
	})
}

// lostTime is by how much the changes may prolong a lease.
func (c *leaderChanges) lostTime() time.Duration {
	return c.leaderless + time.Duration(c.times)*time.Second
}

func TestLeasesAcrossLeaderChanges(t *testing.T) {
	kill, isolate, transfer := (*leaderChanges).kill, (*leaderChanges).isolate,
		(*leaderChanges).transfer
	testLeases(t, Config{OnDisk: true}, 10*time.Second, kill, isolate, kill, transfer,
		isolate, kill)
}

// Only a checkpoint each second saves cluster time here: one client renews, every three seconds,
// and each leader dies before.
func TestLeasesUnderFrequentLeaderChanges(t *testing.T) {
	changes := []func(*leaderChanges){(*leaderChanges).kill, (*leaderChanges).isolate}
	testLeases(t, Config{}, time.Minute, slices.Repeat(changes, 150)...)
}

// testLeases kills a client while leaders change every two seconds: another client gets its lock in
// time, and a living one keeps its own.
func testLeases(t *testing.T, config Config, ttl time.Duration, changes ...func(*leaderChanges)) {
	RunParallel(t, config, func(s *Sim) {
		c := &leaderChanges{Sim: s, leader: s.Start()}
		alive, dead := s.Holder("alive", "kept", 10*time.Second), s.Holder("dead", "lost", ttl)
		waiter := s.Holder("waiter", "lost", time.Hour)
		require.Zero(s, waiter.Token)
		// the changes begin with a renewal of alive, which then saves the least time
		time.Sleep(10 * time.Second / 3)
		dead.Die()
		var took, bound time.Duration
		freed := func() bool {
			at, token, granted := s.Audit.Granted(waiter.Ref)
			if granted && took == 0 {
				took, bound = at-dead.LastConfirmedSend(),
					ttl+c.lostTime()+dueDelayMax+commitTimeMax
				assert.Greater(s, token, dead.Token)
			}
			return granted
		}
		for _, change := range changes {
			next := time.Now().Add(2 * time.Second)
			change(c)
			time.Sleep(time.Until(next))
			freed()
		}
		s.Await(ttl, "the waiter has the lock of the dead client", freed)
		assert.GreaterOrEqual(s, took, ttl, "the lease of the dead client ended early")
		assert.LessOrEqual(s, took, bound, "it lasted too long")
		s.Logf("freed after %v of at most %v; %d leader changes, %v leaderless", took, bound,
			c.times, c.leaderless)
		assert.False(s, alive.Ended(), "the live client lost its session")
		assert.True(s, c.leader.holds("kept", alive), "the live client lost its lock")
		s.Check()
	})
}

// A lease runs from the last message of its session, not from the tick of the clock before that.
func TestLeaseIsNotShortenedByTick(t *testing.T) {
	const ttl, sessions = 2 * time.Second, 40
	runStarted(t, Config{}, func(s *Sim, leader *Node) {
		random := s.Random("delays")
		sleep := func() { time.Sleep(workload.UpTo(random, 2*dueDelayMax)) }
		lastSent := map[session.ID]time.Duration{}
		for i := range sessions {
			id := leader.OpenSession(fmt.Sprint("session ", i), ttl)
			sleep()
			lastSent[id] = s.Elapsed()
			leader.Lock(id, 1, fmt.Sprint("lock ", i))
			sleep()
		}
		time.Sleep(2 * ttl)
		for id, sent := range lastSent {
			at, ended := s.Audit.Ended(id)
			assert.True(s, ended)
			assert.GreaterOrEqual(s, at-sent, ttl, "session %d ended early", id)
			assert.LessOrEqual(s, at-sent, ttl+dueDelayMax+commitTimeMax,
				"session %d ended late", id)
		}
	})
}

// While a leader is stopped, time is stopped: a pause of its process or its disk ages no session
// that is renewed, and any other session by at most one step of the clock.
func TestStalledLeaderExpiresNoLease(t *testing.T) {
	t.Parallel()
	const ttl, pause = 5 * time.Second, 10 * time.Second
	for of, stall := range map[string]func(*Sim, *Node){
		"its epoch": func(_ *Sim, leader *Node) { leader.Clock.Freeze() },
		"its disk": func(s *Sim, _ *Node) { // and the others', or another would lead
			for _, n := range s.Members() {
				n.Disk.Stall()
			}
		},
	} {
		Run(t, Config{}, func(s *Sim) {
			leader := s.Start()
			alive, dead := s.Holder("alive", "kept", ttl), s.Holder("dead", "lost", ttl)
			time.Sleep(time.Second)
			dead.Die()
			stall(s, leader)
			time.Sleep(pause)
			assert.False(s, dead.Ended(), "%s: nothing can end meanwhile", of)
			require.Zero(s, leader.Fatal(), "%s", of)
			leader.Clock.Thaw()
			for _, n := range s.Members() {
				n.Disk.Resume()
			}
			s.Await(2*ttl, "the dead session has ended", dead.Ended)
			at, _ := s.Audit.Ended(dead.Ref.Session)
			took, cut := at-dead.LastConfirmedSend(), leader.Status().Cut.Duration()
			s.Logf("%s: the session of the dead client ended after %v; cut off: %v", of, took, cut)
			assert.GreaterOrEqual(s, took, ttl)
			assert.LessOrEqual(s, took, ttl+cut+dueDelayMax+commitTimeMax+pause)
			if of == "its epoch" {
				assert.InDelta(s, pause.Seconds(), cut.Seconds(),
					clock.StepMax.Duration().Seconds(), "what was cut off shows")
				assert.Greater(s, took, pause+ttl-2*time.Second, "the pause counted")
			}
			time.Sleep(2 * ttl)
			assert.True(s, leader.holds("kept", alive), "%s: the live client lost its lock", of)
			assert.Equal(s, 1, s.Audit.Epochs(), "%s: another one led meanwhile", of)
			s.Check()
		})
	}
}

// holds reports whether a holder has its lock, after a proposal that confirms the leader.
func (n *Node) holds(lock string, h *Holder) (held bool) {
	n.sim.Helper()
	n.MustPropose(nil)
	n.Running().View(func(m *fsm.Machine) { held = m.Holds(lock, h.Token, h.Ref) })
	return held
}

func TestIdleClusterWritesNothing(t *testing.T) {
	quiet := time.Hour
	if testing.Short() || os.Getenv("ZAMOK_TEST_ALL") == "" {
		quiet /= 6
	}
	// Heartbeats are not written, and an hour of them takes long; so there are fewer.
	calm := func(c *raftnode.Config) { c.ElectionTimeout = 2 * time.Second }
	RunParallel(t, Config{Limit: 2 * time.Hour, Tune: calm}, func(s *Sim) {
		s.startProcesses()
		time.Sleep(10 * time.Second)
		leader := s.Leader()
		id := leader.OpenSession("visitor", 5*time.Second)
		leader.Lock(id, 1, "x")
		time.Sleep(10 * time.Second) // the session has ended, and all nodes are announced
		before := leader.Status()
		time.Sleep(quiet)
		after := leader.Status()
		assert.Equal(s, before.RaftIndex, after.RaftIndex,
			"%v without sessions wrote something", quiet)
		assert.Equal(s, before.Term, after.Term)
		require.Equal(s, 1, s.Audit.Epochs())
	})
}

// Waiters cost nothing while the queue stands: with a hundred there are no more entries in the log
// than with one: the renewals of the session and one checkpoint a second.
func TestWaitingClientWritesNoEntries(t *testing.T) {
	t.Parallel()
	const minutes = 3
	entries := func(waiters int) (n uint64) {
		Run(t, Config{Nodes: 1}, func(s *Sim) {
			s.Start()
			holder, waiter := s.program("holder", nil), s.program("waiter", nil)
			s.lock(holder, "x")
			ctx, cancel := context.WithCancel(context.Background())
			parked := make(chan error)
			for range waiters {
				go func() {
					_, err := waiter.Lock(ctx, "x")
					parked <- err
				}()
			}
			s.Await(10*time.Second, "all wait", func() bool { return s.waiters("x") == waiters })
			time.Sleep(5 * time.Second)
			raft := s.Leader().Running()
			before := raft.Status().RaftIndex
			time.Sleep(minutes * time.Minute)
			n = raft.Status().RaftIndex - before
			cancel()
			for range waiters {
				assert.ErrorIs(t, <-parked, context.Canceled)
			}
			assert.NoError(t, waiter.Close())
			assert.NoError(t, holder.Close())
		})
		return n
	}
	one, many := entries(1), entries(100)
	const renewals = 2 * minutes * 60 * 3 / 10 // of two sessions with a ttl of 10 s
	t.Logf("%d entries in %d minutes with one waiter, %d with a hundred", one, minutes, many)
	assert.LessOrEqual(t, many, uint64(minutes*60+2*renewals))
	assert.GreaterOrEqual(t, one, uint64(minutes*60*9/10), "a checkpoint each second")
	assert.InDelta(t, one, many, renewals)
}
