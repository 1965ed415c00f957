package sim

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"zamok/raftnode"
)

// forEachDiskKind runs a story with data in memory and on a disk. Each write takes long enough for something
// to be under way whenever the power fails.
func forEachDiskKind(t *testing.T, story func(*Sim)) {
	for name, disks := range map[string]Disks{"in memory": InMemory, "on disk": OnDisk} {
		t.Run(name, func(t *testing.T) {
			RunParallel(t, Config{Disks: disks, Tune: withTinyLogs, WriteTimeMax: 20 * time.Millisecond}, story)
		})
	}
}

// withTinyLogs has each snapshot replace entries that the one before it does not hold.
func withTinyLogs(c *raftnode.Config) { c.SnapshotEntries, c.SnapshotEvery = 8, time.Second }

// However often the power fails everywhere at once, what was acknowledged is there.
func TestAcknowledgedWritesSurvivePowerFailure(t *testing.T) {
	t.Parallel()
	forEachDiskKind(t, func(s *Sim) {
		s.Start()
		load := s.Load(5, 100*time.Millisecond)
		random := s.Random("blackouts")
		least, all := 20, []writeOutcome{writeKept, writeLost}
		if s.config.Disks == OnDisk { // where flushes take real time
			least, all = 4, append(all, writeTorn)
		}
		const most = 60
		times := 0
		for missing := true; missing; times++ {
			require.Less(s, times, most, "of what was under way: %v", s.WriteOutcomes())
			time.Sleep(time.Duration(random.Int64N(int64(2 * time.Second))))
			var down sync.WaitGroup
			for _, n := range s.Members() {
				down.Go(n.LosePower)
			}
			down.Wait()
			s.Start()
			became := s.WriteOutcomes()
			missing = times < least || slices.ContainsFunc(all, func(r writeOutcome) bool { return became[r] == 0 })
		}
		stopAndCheck(s, load)
		s.Logf("%d blackouts: %v, %d entries", times, s.WriteOutcomes(), len(s.Audit.Entries()))
	})
}

// The power fails in the middle of each kind of write, at a leader and at others, and the write is kept, or
// it is lost.
func TestPowerFailureDuringEachWriteKind(t *testing.T) {
	t.Parallel()
	forEachDiskKind(t, func(s *Sim) {
		leader := s.Start()
		load := s.Load(5, 100*time.Millisecond)
		time.Sleep(3 * time.Second)          // and some snapshots
		const takes = 200 * time.Millisecond // for what continues without waiting to get far
		for i, op := range []diskOp{opSnapshot, opAppend, opDelete, opVote, opTerm} {
			for j, became := range []writeOutcome{writeLost, writeKept} {
				who := s.Others(leader)
				var down sync.WaitGroup
				switch {
				case op == opVote || op == opTerm:
					down.Go(leader.LosePower) // the others vote, and may have voted before its process has ended
				case (i+j)%2 == 0:
					who = []*Node{leader}
				}
				for _, n := range who {
					n.Disk.forcedOutcome.set(became)
				}
				struck := losePowerDuring(s.Within(time.Minute), op, takes, takes*9/10, who...)
				down.Wait()
				require.NotNil(s, struck, "no node made a write of kind %q", op)
				for _, n := range []*Node{struck, leader} {
					if n.processEnded() {
						n.Start()
					}
				}
				leader = s.Leader()
				s.AwaitConverged(backoffMax)
			}
		}
		stopAndCheck(s, load)
		s.Logf("%v", s.WriteOutcomes())
	})
}

// A part of a transaction leaves a file that is as it was before. That is bbolt's promise, on which package
// store builds, and shows that what is torn here is what a disk may leave.
func TestTornTransactionIsRolledBack(t *testing.T) {
	t.Parallel()
	seed := testSeed(t)
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
		updateBolt(t, path, func(tx *bbolt.Tx) error {
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
		updateBolt(t, path, func(tx *bbolt.Tx) error {
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

// updateBolt makes one transaction in a file, as package store does.
func updateBolt(t *testing.T, path string, do func(*bbolt.Tx) error) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType, NoSync: true})
	require.NoError(t, err)
	require.NoError(t, db.Update(do))
	require.NoError(t, db.Close())
}
