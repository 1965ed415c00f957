package sim

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"zamok/raftnode"
	"zamok/raftnode/store"
)

// foundingSteps are what an initial member does, in order. Its process can end before each of them, and after
// each write.
var foundingSteps = []string{
	"agreed", // has decided on the initial members, and not written them
	"begins", // has written them, and learned that all others have
	"before the term", "after the term", "before the entry", "after the entry",
}

// dieAt ends the process at a step, once.
func dieAt(step string) (tune Tune, died *atomic.Bool) {
	died = &atomic.Bool{}
	return func(c *raftnode.Config) {
		at := func(now string) {
			if now == step && !died.Swap(true) {
				c.Fatal(errors.New("killed while the cluster began: " + step))
			}
		}
		c.Logger = slog.New(&stepLog{Handler: c.Logger.Handler(), at: func(line string) {
			for message, step := range map[string]string{"initial members agreed": "agreed", "bootstrapping the cluster": "begins"} {
				if strings.HasPrefix(line, message) {
					at(step)
				}
			}
		}})
		inner := c.Wrap
		c.Wrap.Votes = func(t store.Table) store.Table { return foundingVotes{inner.Votes(t), at} }
		c.Wrap.Logs = func(l raft.LogStore) raft.LogStore { return foundingEntries{inner.Logs(l), at} }
	}, died
}

// stepLog shows each line of a log to somebody when it is written.
type stepLog struct {
	slog.Handler
	at func(line string)
}

func (h *stepLog) Handle(ctx context.Context, r slog.Record) error {
	err := h.Handler.Handle(ctx, r)
	line := r.Message
	r.Attrs(func(a slog.Attr) bool {
		line += " " + a.String()
		return true
	})
	h.at(line)
	return err
}

func (h *stepLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &stepLog{h.Handler.WithAttrs(attrs), h.at}
}

type foundingVotes struct {
	store.Table
	at func(string)
}

func (v foundingVotes) Put(pairs ...store.Pair) error {
	v.at("before the term")
	err := v.Table.Put(pairs...)
	v.at("after the term")
	return err
}

type foundingEntries struct {
	raft.LogStore
	at func(string)
}

func (l foundingEntries) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

func (l foundingEntries) StoreLogs(entries []*raft.Log) error {
	l.at("before the entry")
	err := l.LogStore.StoreLogs(entries)
	l.at("after the entry")
	return err
}

// An initial member ends at each of its steps, or all of them do; they are started again, and the cluster begins.
func TestABeginningThatBrokeOffIsFinished(t *testing.T) {
	t.Parallel()
	for _, step := range foundingSteps {
		for _, dying := range []string{"n1", "n2", "n3", "n1 n2 n3"} {
			Run(t, Config{Disks: OnDisk}, func(s *Sim) {
				for _, n := range s.Founders() {
					if strings.Contains(dying, n.ID) {
						tune, _ := dieAt(step)
						n.Begin(tune)
					} else {
						n.Begin()
					}
				}
				time.Sleep(time.Second)
				dead := 0
				for _, n := range s.Founders() {
					if n.hasEnded() {
						dead++
					} else if strings.Contains(dying, n.ID) {
						n.Kill() // those that died before it keep it from coming so far
					}
				}
				require.NotZero(s, dead, "%s: nobody died %s", dying, step)
				for _, n := range s.Founders() {
					if n.hasEnded() {
						n.Begin()
						time.Sleep(time.Second)
					}
				}
				for _, n := range s.Founders() {
					require.NoError(s, n.Opened(s.Within(electionMax)), "%s dies %s: %s", dying, step, n.ID)
				}
				leader := s.Leader()
				time.Sleep(3 * time.Second)
				tokens := fifty(s, leader)
				for _, n := range s.Others(leader) {
					s.Follow(leader, n, electionMax)
				}
				require.Len(s, voters(leader), 3)
				requireAll(s, leader, tokens)
			})
		}
	}
}

// The one that ended has lost its disk as well. Before anybody wrote the first entry it founds the
// cluster with the others, with its new directory; afterwards it can join them.
func TestAFounderThatIsWipedWhileTheClusterBegins(t *testing.T) {
	t.Parallel()
	for _, step := range foundingSteps {
		Run(t, Config{Disks: OnDisk}, func(s *Sim) {
			tune, _ := dieAt(step)
			n3 := s.Node("n3")
			n3.Begin(tune)
			s.Node("n1").Begin()
			s.Node("n2").Begin()
			s.Await(electionMax, "n3 dies", n3.hasEnded)
			both := func(c *raftnode.Config) { c.Join = true }
			fresh := s.Replace(n3, "n3", store.ID{})
			fresh.Begin(both)
			for _, id := range []string{"n1", "n2"} {
				require.NoError(s, s.Node(id).Opened(s.Within(electionMax)), step)
			}
			require.NoError(s, fresh.Opened(s.Within(electionMax)), step)
			leader := s.Leader()
			time.Sleep(3 * time.Second)
			tokens := fifty(s, leader)
			joinUntil(s, fresh, time.Minute)
			requireAll(s, s.Leader(), tokens)
		})
	}
}

// A node whose disk is full agrees to nothing: it would have written its term and not its log. The
// others say whom they wait for, and why, and the cluster begins when there is room.
func TestAFounderWithoutRoomAgreesToNothing(t *testing.T) {
	t.Parallel()
	Run(t, Config{Disks: OnDisk}, func(s *Sim) {
		n1, n3 := s.Node("n1"), s.Node("n3")
		n3.Disk.Fill(24 << 20)
		for _, n := range s.Founders() {
			n.Begin()
		}
		require.ErrorContains(s, n1.Opened(s.Within(30*time.Second)), "still starting")
		require.True(s, s.Trace.Has("n1", "waiting", "n3", "MiB are free"), "the others know why")
		require.True(s, s.Trace.Has("n3", "waiting", "MiB are free"), "it says so itself")
		n3.Disk.Fill(1 << 40)
		for _, n := range s.Founders() {
			require.NoError(s, n.Opened(s.Within(electionMax)))
		}
		requireAll(s, s.Leader(), nil)
	})
}

// An initial member that was away since it wrote the first entry does not know the cluster's id. A leader that
// joined later has no initial members to show it. What they have in common is which server the leader means.
func TestAFounderThatWasAwayIsCaughtUpByANewcomer(t *testing.T) {
	t.Parallel()
	Run(t, Config{Disks: OnDisk}, func(s *Sim) {
		tune, _ := dieAt("after the entry")
		n1, n2, n3 := s.Node("n1"), s.Node("n2"), s.Node("n3")
		n1.Begin()
		n2.Begin()
		n3.Begin(tune, func(c *raftnode.Config) {
			inner := c.Wrap.Logs
			c.Wrap.Logs = func(l raft.LogStore) raft.LogStore {
				return foundingEntries{inner(l), func(step string) {
					if step == "before the entry" {
						time.Sleep(time.Second) // until the others have heard from it that they may begin
					}
				}}
			}
		})
		s.Await(electionMax, "n3 dies", n3.hasEnded)
		leaderOf(s, n1)
		tokens := fifty(s, n1)
		time.Sleep(3 * time.Second)
		fourth := join(s, n1, "n4", "n4")
		leaderOf(s, fourth)
		n3.Restart()
		s.Follow(fourth, n3, backoffMax)
		require.True(s, fourth.Status().Leading, "it is the newcomer that has caught it up")
		n2.Kill()
		requireAll(s, s.Leader(), tokens)
	})
}
