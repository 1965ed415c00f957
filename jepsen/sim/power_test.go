package sim

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"zamok/raftnode"
	"zamok/raftnode/store"
)

// onBothDisks runs a story with data in memory and on a disk. Each write takes long enough for something
// to be under way whenever the power fails.
func onBothDisks(t *testing.T, story func(*Sim)) {
	for name, disks := range map[string]Disks{"in memory": InMemory, "on disk": OnDisk} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			Run(t, Config{Disks: disks, Tune: tinyLogs, WriteTakes: 20 * time.Millisecond}, story)
		})
	}
}

// tinyLogs has each snapshot replace entries that the one before it does not hold.
func tinyLogs(c *raftnode.Config) { c.SnapshotEntries, c.SnapshotEvery = 8, time.Second }

// blackout has the power of all machines fail at one moment, and starts them again.
func blackout(s *Sim) {
	s.Helper()
	nodes := s.Members()
	down := make(chan struct{})
	for _, n := range nodes {
		go func() {
			n.LosePower()
			down <- struct{}{}
		}()
	}
	for range nodes {
		<-down
	}
	for _, n := range nodes {
		n.Begin()
	}
	for _, n := range nodes {
		require.NoError(s, n.Opened(s.Within(electionMax)), "%s after the power had failed", n.ID)
	}
	s.Leader()
}

// However often the power fails everywhere at once, what was acknowledged is there.
func TestWhatWasAcknowledgedSurvivesPowerFailures(t *testing.T) {
	t.Parallel()
	onBothDisks(t, func(s *Sim) {
		s.Start()
		load := s.Load(LoadConfig{Clients: 5, TTL: 10 * time.Second, Locks: 3, Hold: 100 * time.Millisecond})
		random := s.Random("blackouts")
		least, all := 20, []remains{allOfIt, noneOfIt}
		if s.config.Disks == OnDisk { // where flushes take real time
			least, all = 4, append(all, aPart)
		}
		const most = 60
		times := 0
		for missing := true; missing; times++ {
			require.Less(s, times, most, "of what was under way: %v", s.Fates())
			time.Sleep(time.Duration(random.Int64N(int64(2 * time.Second))))
			blackout(s)
			became := s.Fates()
			missing = times < least || slices.ContainsFunc(all, func(r remains) bool { return became[r] == 0 })
		}
		settle(s, load)
		s.Logf("%d blackouts: %v, %d entries", times, s.Fates(), len(s.Audit.Entries()))
	})
}

// The power fails in the middle of each kind of write, at a leader and at others, and the write is kept, or
// it is lost.
func TestPowerFailsInEachKindOfWrite(t *testing.T) {
	t.Parallel()
	onBothDisks(t, func(s *Sim) {
		leader := s.Start()
		load := s.Load(LoadConfig{Clients: 5, TTL: 10 * time.Second, Locks: 3, Hold: 100 * time.Millisecond})
		time.Sleep(3 * time.Second) // and some snapshots
		for i, op := range []diskOp{opSnapshot, opAppend, opDelete, opVote, opTerm} {
			for j, became := range []remains{noneOfIt, allOfIt} {
				who := s.Others(leader)
				switch {
				case op == opVote || op == opTerm:
					leader.LosePower() // the others vote
				case (i+j)%2 == 0:
					who = []*Node{leader}
				}
				struck := powerIn(s, op, became, who...)
				for _, n := range []*Node{struck, leader} {
					if n.hasEnded() {
						n.Restart()
					}
				}
				leader = s.Leader()
				s.Together(backoffMax)
			}
		}
		settle(s, load)
		s.Logf("%v", s.Fates())
	})
}

// settle ends a load, lets the writes land that nobody waits for any more, and looks at the run.
func settle(s *Sim, load *Load) {
	s.Helper()
	load.Stop()
	time.Sleep(time.Second)
	finish(s, load)
}

// powerIn has the first of these nodes that begins such a write lose its power in the middle of it.
func powerIn(s *Sim, op diskOp, became remains, nodes ...*Node) *Node {
	s.Helper()
	const takes = 200 * time.Millisecond // for whoever goes on without waiting to get far
	struck := make(chan *Node, len(nodes))
	for _, n := range nodes {
		n.Disk.decide(became)
		n.Disk.atNext(op, takes, func() { struck <- n })
	}
	select {
	case n := <-struck:
		time.Sleep(takes * 9 / 10)
		n.LosePower()
		for _, other := range nodes {
			other.Disk.unset()
		}
		return n
	case <-time.After(time.Minute):
		s.Fatalf("nobody began to %s anything", op)
		return nil
	}
}

// A part of a transaction leaves a file that is as it was before. That is bbolt's promise, on which package
// store builds, and shows that what is torn here is what a disk may leave.
func TestATornTransactionDidNotHappen(t *testing.T) {
	t.Parallel()
	seed := seedOf(t)
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	path := filepath.Join(t.TempDir(), "torn.db")
	values := map[string]string{}
	const rounds = 300
	undone := 0
	for range rounds {
		before, err := os.ReadFile(path)
		require.True(t, err == nil || len(values) == 0)
		next := maps.Clone(values)
		for range 1 + random.IntN(20) {
			next[fmt.Sprint(random.IntN(500))] = strings.Repeat("x", random.IntN(400))
		}
		bolt(t, path, func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte("bucket"))
			for key, value := range next {
				err = errors.Join(err, b.Put([]byte(key), []byte(value)))
			}
			return err
		})
		after, err := os.ReadFile(path)
		require.NoError(t, err)
		if len(values) > 0 {
			require.NoError(t, os.WriteFile(path, tearPages(before, after, random), 0o600))
		}
		found := map[string]string{}
		bolt(t, path, func(tx *bbolt.Tx) error {
			for err := range tx.Check() {
				require.NoError(t, err)
			}
			return tx.Bucket([]byte("bucket")).ForEach(func(key, value []byte) error {
				found[string(key)] = string(value)
				return nil
			})
		})
		if !maps.Equal(found, next) {
			require.Equal(t, values, found, "neither before nor after")
			undone++
		}
		values = found
	}
	assert.Greater(t, undone, rounds/2)
}

// bolt makes one transaction in a file, as package store does.
func bolt(t *testing.T, path string, do func(*bbolt.Tx) error) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType, NoSync: true})
	require.NoError(t, err)
	require.NoError(t, db.Update(do))
	require.NoError(t, db.Close())
}

// A node whose disk has no room for entries leads nobody; what it can't take was not done, and the others
// go on. Below the mark it says so, and goes on too.
func TestDisksThatFillUpStopNobodyElse(t *testing.T) {
	t.Parallel()
	Run(t, Config{Tune: smallLogs}, func(s *Sim) {
		full := s.Start()
		load := s.Load(light())
		time.Sleep(5 * time.Second)
		full.Disk.Fill(0)
		_, err := full.Propose(s.Within(answerMax), exclusive(1, 1, "x"))
		assert.Equal(s, NotDone, outcomeOf(err), "%v", err)
		next := s.LeaderBeside(full)
		low := s.Others(full)[0]
		low.Disk.Fill((store.DefaultReservedSpace + store.DefaultLowSpace) / 2)
		s.Await(time.Minute, "it is told that the disk is nearly full", func() bool { return low.Status().DiskLow })
		time.Sleep(10 * time.Second)
		assert.NotEqual(s, "Leader", full.Status().State)
		before := next.Status().Applied
		time.Sleep(10 * time.Second)
		assert.True(s, before.Before(next.Status().Applied), "nothing was written for ten seconds")
		for _, n := range s.Founders() {
			n.Disk.Fill(math.MaxUint64)
		}
		s.Follow(next, full, backoffMax)
		finish(s, load)
		for _, n := range s.Founders() {
			assert.NoError(s, n.Fatal())
		}
	})
}
