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

// bootstrapSteps are what an initial member does, in order. Its process can end before each of them, and after
// each write.
var bootstrapSteps = []string{
	"agreed", // has decided on the initial members, and not written them
	"begins", // has written them, and learned that all others have
	"before the term", "after the term", "before the entry", "after the entry",
}

// exitAtStep ends the process at a step, once.
func exitAtStep(step string) (tune Tune, exited *atomic.Bool) {
	exited = &atomic.Bool{}
	return func(c *raftnode.Config) {
		at := func(now string) {
			if now == step && !exited.Swap(true) {
				c.Fatal(errors.New("killed while the cluster began: " + step))
			}
		}
		c.Logger = slog.New(&stepHandler{Handler: c.Logger.Handler(), at: func(line string) {
			for message, step := range map[string]string{"initial members agreed": "agreed", "bootstrapping the cluster": "begins"} {
				if strings.HasPrefix(line, message) {
					at(step)
				}
			}
		}})
		inner := c.Store.Wrap
		c.Store.Wrap.Votes = func(t store.Table) store.Table { return stepVotes{inner.Votes(t), at} }
		c.Store.Wrap.Logs = func(l raft.LogStore) raft.LogStore { return stepEntries{inner.Logs(l), at} }
	}, exited
}

// stepHandler shows each line of a log to somebody when it is written.
type stepHandler struct {
	slog.Handler
	at func(line string)
}

func (h *stepHandler) Handle(ctx context.Context, r slog.Record) error {
	err := h.Handler.Handle(ctx, r)
	line := r.Message
	r.Attrs(func(a slog.Attr) bool {
		line += " " + a.String()
		return true
	})
	h.at(line)
	return err
}

func (h *stepHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &stepHandler{h.Handler.WithAttrs(attrs), h.at}
}

type stepVotes struct {
	store.Table
	at func(string)
}

func (v stepVotes) Put(pairs ...store.Pair) error {
	v.at("before the term")
	err := v.Table.Put(pairs...)
	v.at("after the term")
	return err
}

type stepEntries struct {
	raft.LogStore
	at func(string)
}

func (l stepEntries) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

func (l stepEntries) StoreLogs(entries []*raft.Log) error {
	l.at("before the entry")
	err := l.LogStore.StoreLogs(entries)
	l.at("after the entry")
	return err
}

// An initial member ends at each of its steps, or all of them do; they are started again, and the cluster begins.
func TestInterruptedBootstrapCompletes(t *testing.T) {
	t.Parallel()
	for _, step := range bootstrapSteps {
		for _, dying := range []string{"n1", "n2", "n3", "n1 n2 n3"} {
			Run(t, Config{Disks: OnDisk}, func(s *Sim) {
				for _, n := range s.InitialMembers() {
					if strings.Contains(dying, n.ID) {
						tune, _ := exitAtStep(step)
						n.StartProcess(tune)
					} else {
						n.StartProcess()
					}
				}
				time.Sleep(time.Second)
				dead := 0
				for _, n := range s.InitialMembers() {
					if n.processEnded() {
						dead++
					} else if strings.Contains(dying, n.ID) {
						n.Kill() // those that died before it keep it from coming so far
					}
				}
				require.NotZero(s, dead, "%s: nobody died %s", dying, step)
				for _, n := range s.InitialMembers() {
					if n.processEnded() {
						n.StartProcess()
						time.Sleep(time.Second)
					}
				}
				for _, n := range s.InitialMembers() {
					require.NoError(s, n.AwaitOpen(s.Within(electionTimeMax)), "%s dies %s: %s", dying, step, n.ID)
				}
				leader := s.Leader()
				time.Sleep(3 * time.Second)
				tokens := acquireFifty(s, leader)
				for _, n := range s.Others(leader) {
					s.AwaitApplied(leader, n, electionTimeMax)
				}
				require.Len(s, voters(leader), 3)
				requireAllHeld(s, leader, tokens)
			})
		}
	}
}

// The one that ended has lost its disk as well. Before anybody wrote the first entry it founds the
// cluster with the others, with its new directory; afterwards it can join them.
func TestInitialMemberWipedDuringBootstrap(t *testing.T) {
	t.Parallel()
	for _, step := range bootstrapSteps {
		Run(t, Config{Disks: OnDisk}, func(s *Sim) {
			tune, _ := exitAtStep(step)
			n3 := s.Node("n3")
			n3.StartProcess(tune)
			s.Node("n1").StartProcess()
			s.Node("n2").StartProcess()
			s.Await(electionTimeMax, "n3 dies", n3.processEnded)
			both := func(c *raftnode.Config) { c.Join = true }
			fresh := s.Replace(n3, "n3", store.ID{})
			fresh.StartProcess(both)
			for _, id := range []string{"n1", "n2"} {
				require.NoError(s, s.Node(id).AwaitOpen(s.Within(electionTimeMax)), step)
			}
			require.NoError(s, fresh.AwaitOpen(s.Within(electionTimeMax)), step)
			leader := s.Leader()
			time.Sleep(3 * time.Second)
			tokens := acquireFifty(s, leader)
			joinUntil(s, fresh, time.Minute)
			requireAllHeld(s, s.Leader(), tokens)
		})
	}
}

// A node whose disk is full agrees to nothing: it would have written its term and not its log. The
// others say whom they wait for, and why, and the cluster begins when there is room.
func TestInitialMemberWithFullDiskDoesNotBootstrap(t *testing.T) {
	t.Parallel()
	Run(t, Config{Disks: OnDisk}, func(s *Sim) {
		n1, n3 := s.Node("n1"), s.Node("n3")
		n3.Disk.SetFree(24 << 20)
		for _, n := range s.InitialMembers() {
			n.StartProcess()
		}
		require.ErrorContains(s, n1.AwaitOpen(s.Within(30*time.Second)), "still starting")
		require.True(s, s.Trace.Has("n1", "waiting", "n3", "MiB are free"), "the others know why")
		require.True(s, s.Trace.Has("n3", "waiting", "MiB are free"), "it says so itself")
		n3.Disk.SetFree(1 << 40)
		for _, n := range s.InitialMembers() {
			require.NoError(s, n.AwaitOpen(s.Within(electionTimeMax)))
		}
		requireAllHeld(s, s.Leader(), nil)
	})
}

// An initial member that was away since it wrote the first entry does not know the cluster's id. A leader that
// joined later has no initial members to show it. What they have in common is which server the leader means.
func TestAbsentInitialMemberCatchesUp(t *testing.T) {
	t.Parallel()
	Run(t, Config{Disks: OnDisk}, func(s *Sim) {
		tune, _ := exitAtStep("after the entry")
		n1, n2, n3 := s.Node("n1"), s.Node("n2"), s.Node("n3")
		n1.StartProcess()
		n2.StartProcess()
		n3.StartProcess(tune, func(c *raftnode.Config) {
			inner := c.Store.Wrap.Logs
			c.Store.Wrap.Logs = func(l raft.LogStore) raft.LogStore {
				return stepEntries{inner(l), func(step string) {
					if step == "before the entry" {
						time.Sleep(time.Second) // until the others have heard from it that they may begin
					}
				}}
			}
		})
		s.Await(electionTimeMax, "n3 dies", n3.processEnded)
		leaderOf(s, n1)
		tokens := acquireFifty(s, n1)
		time.Sleep(3 * time.Second)
		fourth := join(s, n1, "n4", "n4")
		leaderOf(s, fourth)
		n3.Restart()
		s.AwaitApplied(fourth, n3, backoffMax)
		require.True(s, fourth.Status().Leading, "it is the newcomer that has caught it up")
		n2.Kill()
		requireAllHeld(s, s.Leader(), tokens)
	})
}
