package raftnode

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/fsm"
	"zamok/session"
)

// A command on the way to a process: what to do, which caller, which of its tickets, and nothing,
// up to the size of a small acquisition. The floor proposes these bytes as they are.
const commandBytes = 48

func encodeCommand(b []byte, what byte, caller int, ticket uint64) {
	b[0] = what
	binary.BigEndian.PutUint32(b[1:], uint32(caller))
	binary.BigEndian.PutUint64(b[5:], ticket)
}

const (
	callAcquire = 'a'
	callDrop    = 'd'
)

// serve opens a session for each caller, and answers calls.
func (s *served) serve(t *testing.T, callers int) string {
	sessions := make([]session.ID, callers)
	for i := range sessions {
		open := &fsm.OpenSession{Secret: session.Hash{1, byte(i), byte(i >> 8)},
			Settings: session.Settings{TTL: fsm.LongestTTLDefault}}
		a, err := s.node.Propose(context.Background(), open)
		require.NoError(t, err)
		sessions[i] = a.Result.Session
	}
	return serveCalls(t, func(command []byte, answer func(bool)) {
		caller, ticket := binary.BigEndian.Uint32(command[1:]), binary.BigEndian.Uint64(command[5:])
		s.node.Submit(context.Background(), commandOf(command[0], sessions[caller], ticket, caller),
			func(a Answer, err error) {
				answer(err == nil && a.Result.Code == fsm.OK)
			})
	})
}

func commandOf(what byte, id session.ID, ticket uint64, caller uint32) fsm.Command {
	if what == callDrop {
		return &fsm.Drop{Session: id, Ticket: ticket, AckedThrough: ticket}
	}
	return &fsm.Acquire{
		Session: id, Ticket: ticket, AckedThrough: ticket - 1,
		Items: []fsm.Item{{Name: fmt.Sprintf("lock of caller %d", caller), Mode: fsm.Exclusive}},
	}
}
