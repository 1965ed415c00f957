package sim

import (
	"bytes"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/fsm"
	"zamok/raftnode"
)

// digestPoint is how many indexes lie between two comparisons of the nodes' digests.
const digestPoint = 4096

// rotten lets a node come back with an entry of its log changed, in a way that only the entry's own form
// gives away: this node refuses it, as all would; but the others have applied it.
func rotten(n *Node, lock string) {
	n.Kill()
	n.Disk.Rot(func(l *raft.Log) {
		// The bytes in memory are shared with the log, which stays as it is.
		l.Data = bytes.ReplaceAll(l.Data, []byte(lock), bytes.ToUpper([]byte(lock)))
	})
	n.Restart()
}

// fill takes the machines beyond the next point at which digests are compared.
func fill(s *Sim, leader *Node) {
	s.Helper()
	p := leader.running()
	require.NotNil(s, p, "%s does not run", leader.ID)
	done := make(chan error, digestPoint+1)
	for range digestPoint + 1 {
		p.node.Submit(&fsm.Drop{Session: 1 << 40, Ticket: 1}, func(_ raftnode.Answer, err error) { done <- err })
	}
	for range digestPoint + 1 {
		require.NoError(s, <-done)
	}
}

// begin lets a cluster have entries that can rot.
func begin(s *Sim) (leader *Node) {
	leader = s.Start()
	id := leader.Open("holder", time.Hour)
	leader.Lock(id, 1, "apple")
	leader.Lock(id, 2, "pear")
	for _, n := range s.Others(leader) {
		s.Follow(leader, n, time.Second) // what is not on a disk does not rot there
	}
	return leader
}

func TestAFollowerThatDiffersFromAMajorityStops(t *testing.T) {
	t.Parallel()
	Run(t, Config{}, func(s *Sim) {
		leader := begin(s)
		bad := s.Others(leader)[0]
		rotten(bad, "apple")
		time.Sleep(time.Second)
		fill(s, leader)
		s.Await(10*time.Second, "it ends itself", func() bool { return bad.Fatal() != nil })
		require.ErrorIs(s, bad.Fatal(), raftnode.ErrDiverged)
		s.Await(5*time.Second, "an alarm at the others", func() bool {
			return s.Trace.Has(leader.ID, "ALARM", "differ")
		})
		time.Sleep(10 * time.Second)
		for _, n := range s.Others(bad) {
			assert.NoError(s, n.Fatal(), "%s agrees with a majority", n.ID)
		}
		leader.Must(nil)
		require.NotEmpty(s, s.Audit.Breaches(), "the audit sees it too")
	})
}

func TestALeaderThatDiffersHandsOverAndStops(t *testing.T) {
	t.Parallel()
	Run(t, Config{}, func(s *Sim) {
		bad := begin(s)
		rotten(bad, "apple")
		leaderOf(s, bad)
		fill(s, bad)
		from := s.Elapsed()
		next := s.LeaderBeside(bad)
		s.Logf("another leads after %v", s.Elapsed()-from)
		next.Must(nil)
		s.Await(10*time.Second, "it ends itself", func() bool { return bad.Fatal() != nil })
		require.ErrorIs(s, bad.Fatal(), raftnode.ErrDiverged)
		time.Sleep(10 * time.Second)
		for _, n := range s.Others(bad) {
			assert.NoError(s, n.Fatal(), "%s agrees with a majority", n.ID)
		}
	})
}

// Three nodes, three states: nobody can tell who is right, and stopping would end the service.
func TestNobodyStopsWithoutAMajority(t *testing.T) {
	t.Parallel()
	Run(t, Config{}, func(s *Sim) {
		leader := begin(s)
		for i, n := range s.Others(leader) {
			rotten(n, []string{"apple", "pear"}[i])
			time.Sleep(time.Second)
		}
		fill(s, s.Leader())
		s.Await(10*time.Second, "an alarm at all", func() bool {
			return s.Trace.Has("n1", "ALARM") && s.Trace.Has("n2", "ALARM") && s.Trace.Has("n3", "ALARM")
		})
		time.Sleep(time.Minute)
		for _, n := range s.Founders() {
			assert.NoError(s, n.Fatal(), "%s stopped", n.ID)
		}
		s.Leader().Must(nil)
	})
}
