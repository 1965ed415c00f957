package raftnode

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/raftnode/peer"
)

// A dead follower is a line in the leader's log, and its return another one. The end of a node is
// no error, in no node's log.
func TestADeadFollowerIsALineOfTheLog(t *testing.T) {
	inBubble(t, func(b *bubble) {
		leader := b.leader(b.nodes...)
		dead, other := b.others(leader)[0], b.others(leader)[1]
		time.Sleep(time.Minute)
		leader.diary.new()
		b.kill(dead)
		time.Sleep(time.Minute)
		lines := leader.diary.new()
		assert.Len(t, lines, 1)
		assert.Contains(t, lines[len(lines)-1], "level=WARN")
		assert.Contains(t, lines[len(lines)-1],
			`msg="peer unreachable; it is missing new entries until it answers" node=`+dead.self.ID)

		b.start(dead)
		time.Sleep(time.Minute)
		lines = leader.diary.new()
		assert.Len(t, lines, 1)
		assert.Contains(t, lines[len(lines)-1],
			`level=INFO msg="peer reachable again" node=`+dead.self.ID)

		other.diary.new()
		dead.diary.new()
		for _, n := range []*bubbleNode{leader, dead, other} {
			require.NoError(t, n.Close())
			time.Sleep(5 * time.Second)
		}
		for _, n := range b.nodes {
			lines := n.diary.new()
			assert.NotContains(t, strings.Join(lines, ""), "level=ERROR")
			assert.LessOrEqual(t, len(lines), 20, "%s: %s", n.self.ID, lines)
		}
	})
}

// What raft repeats is logged at most once in ten seconds, about each peer, with how often it was
// left out. An error of another node is none of this one's; this node's own end is none at all.
func TestRaftsMessagesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &diary{}
		log := raftLogger(slog.New(
			slog.NewTextHandler(d, &slog.HandlerOptions{Level: slog.LevelDebug})))
		n2, n3 := raft.Server{ID: "n2", Address: "h2:1"}, raft.Server{ID: "n3", Address: "h3:1"}
		for term := range 100 {
			log.Error("failed to make requestVote RPC", "target", n2, "error",
				errors.New("refused"), "term", term)
			log.Error("failed to make requestVote RPC", "target", n3, "error",
				errors.New("refused"), "term", term)
			log.Error("failed to commit logs", "error", errors.New("disk"), "term", term)
		}
		time.Sleep(11 * time.Second)
		synctest.Wait()
		log.Error("failed to commit logs", "error", errors.New("disk"))
		lines := d.new()
		for range 2 {
			log.Info("updating configuration", "command", "AddNonvoter", "server-id", n2.ID)
			log.Info("updating configuration", "command", "AddVoter", "server-id", n2.ID)
		}
		assert.Len(t, d.new(), 2, "what changes is logged")
		require.Len(t, lines, 4)
		for i, want := range []string{
			`level=WARN msg="raft: failed to make requestVote RPC" target="n2 at h2:1"`,
			`target="n3 at h3:1"`,
			`level=ERROR msg="raft: failed to commit logs"`, `left_out=99`,
		} {
			assert.Contains(t, lines[i], want)
		}
		for _, end := range []error{
			&net.OpError{Op: "read", Err: net.ErrClosed},
			fmt.Errorf("no connection: %w", peer.ErrClosed),
			errors.New(
				"msgpack decode error [pos 7]: read tcp 1->2: use of closed network connection"),
		} {
			log.Error("failed to decode incoming command", "error", end)
			log.Error("failed to appendEntries to", "peer", n2, "error", end)
		}
		for _, line := range d.new() {
			assert.Contains(t, line, "level=DEBUG")
		}
		time.Sleep(11 * time.Second)
	})
}
