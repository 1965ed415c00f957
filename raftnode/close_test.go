package raftnode

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"zamok/fsm"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

// heldLog keeps who appends waiting while it is locked.
type heldLog struct {
	raft.LogStore
	sync.Mutex
}

func (h *heldLog) StoreLogs(logs []*raft.Log) error {
	h.Lock()
	defer h.Unlock()
	return h.LogStore.StoreLogs(logs)
}

// A raft that ends by itself, as one does that was removed, leaves unanswered what it has still to
// look at. Closing ends all the same, and what waits gets an unknown outcome.
func TestClosingDoesNotWaitForAnswersThatNeverCome(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	list, err := peer.ParseList("n1=" + listener.Addr().String())
	require.NoError(t, err)
	held := &heldLog{}
	n, err := Open(t.Context(), Config{
		ID: "n1", Peers: peer.Config{List: list, Listener: listener}, Fatal: func(error) {},
		Store: store.Config{Memory: &store.Memory{},
			Wrap: store.Wrap{Logs: func(l raft.LogStore) raft.LogStore {
				held.LogStore = l
				return held
			}}},
	})
	require.NoError(t, err)
	until(t, "an epoch opens, and the node has proposed all that it proposes by itself",
		func() bool {
			n.proposer.queue.mu.Lock()
			idle := n.proposer.queue.count() == 0 && n.proposer.queue.batcher.entries == 0
			n.proposer.queue.mu.Unlock()
			return idle && n.Status().Leading && !n.announcer.isOutOfDate(n.runs.latest.Load())
		})

	held.Lock()
	answers := make(chan error, 2)
	submit := func() {
		n.Submit(t.Context(), &fsm.Drop{Session: 1, Ticket: 1},
			func(_ Answer, err error) { answers <- err })
	}
	submit() // raft's main loop takes it and waits for the disk
	until(t, "it is written", func() bool { _, writing := n.store.Writing(); return writing })
	submit() // this one waits for the main loop
	until(t, "both are on their way", func() bool { return n.proposer.proposals.count() == 2 })
	ended := n.runs.latest.Load().raft.Shutdown()
	held.Unlock()
	require.NoError(t, ended.Error())

	ctx, cancel := context.WithTimeout(t.Context(), answerWait)
	defer cancel()
	closed := make(chan error, 1)
	go func() { closed <- n.Kill() }()
	select {
	case err := <-closed:
		require.NoError(t, err)
	case <-ctx.Done():
		require.Fail(t, "Close does not return")
	}
	for range 2 {
		require.ErrorIs(t, <-answers, ErrUnknown)
	}
}

func (f *proposals) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.byBytes)
}
