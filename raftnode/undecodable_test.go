package raftnode

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/fsm"
	"zamok/fsm/record"
	"zamok/session"
)

// ofAnotherBinary is an undamaged entry with a command that this binary does not know.
func ofAnotherBinary() []byte {
	b := (&fsm.Entry{Version: 1}).Append(nil)
	b = b[:len(b)-record.ChecksumBytes]
	b[len(b)-1] = 1 // command
	return record.AppendChecksum(append(b, 200), 0)
}

// A follower that can't decode an entry keeps it out of its log, so it acknowledges nothing, and
// ends. What only a minority knows is never committed, although the leader is of it.
func TestAFollowerEndsBeforeItAcknowledgesAnEntryOfAnotherBinary(t *testing.T) {
	inBubble(t, func(b *bubble) {
		leader := b.quietLeader()
		before := leader.Status()
		entry := ofAnotherBinary()
		// so the leader takes it for its own
		leader.proposer.proposals.add(&proposal{bytes: entry, awaited: true, sent: time.Now()})
		future := leader.runs.latest.Load().raft.ApplyLog(logEntry(entry), 0)
		for _, n := range b.others(leader) {
			var format *fsm.FormatError
			err := b.ends(n)
			require.ErrorAs(b, err, &format)
			require.ErrorContains(b, err, "not in the log of this node")
			require.ErrorContains(b, err, "start the binary that wrote it")
			last, err := n.store.Logs().LastIndex()
			require.NoError(b, err)
			require.Equal(b, before.RaftIndex, last)
		}
		require.Error(b, leader.runs.latest.Load().waitFor(b.Context(), future))
		require.Equal(b, before.Applied.Index, leader.Status().Applied.Index)
		require.Empty(b, leader.ended)
	})
}

// One that is damaged on its way ends no follower: the leader sends it again (S13 of package
// store).
func TestADamagedEntryIsNotTakenForOneOfAnotherBinary(t *testing.T) {
	ps := &proposals{byBytes: map[*byte]*proposal{}}
	l := logEntry(ofAnotherBinary())
	require.Error(t, ps.check(&l))
	l.Data = bytes.Clone(l.Data)
	l.Data[3] ^= 1
	require.NoError(t, ps.check(&l))
	l = logEntry((&fsm.Entry{Version: 1}).Append(nil))
	require.NoError(t, ps.check(&l))
}

// A committed entry that can't be decoded ends the node before anything of it is applied.
func TestACommittedEntryOfAnotherBinaryEndsTheNode(t *testing.T) {
	inBubble(t, func(b *bubble) {
		leader := b.leader(b.nodes...)
		require.NoError(b, b.fence(leader))
		bad := b.others(leader)[0]
		time.Sleep(time.Second)
		before := bad.Status().Applied
		entry := logEntry(ofAnotherBinary())
		entry.Index, entry.Term = bad.Status().RaftIndex+1, bad.Status().Term
		// ends with the goroutine, as the process would
		go bad.state.ApplyBatch([]*raft.Log{&entry})
		var format *fsm.FormatError
		require.ErrorAs(b, b.ends(bad), &format)
		require.Equal(b, before, bad.Status().Applied)
	})
}

// A snapshot of another binary ends the node as well, and is not called damaged.
func TestASnapshotOfAnotherBinaryIsNotCalledDamaged(t *testing.T) {
	var b bytes.Buffer
	_, err := fsm.New().Freeze().WriteTo(&b)
	require.NoError(t, err)
	body := bytes.Clone(b.Bytes()[:b.Len()-record.ChecksumBytes])
	body[len(body)-3]++ // the kind of the last record
	restore := func(snapshot []byte) error {
		ended := make(chan error, 1)
		cfg := Config{Versions: fsm.SupportedVersions(), Fatal: func(err error) { ended <- err }}
		s := &state{base: &base{log: slog.New(slog.DiscardHandler), cfg: cfg}}
		// ends with the goroutine, as the process would
		go s.Restore(io.NopCloser(bytes.NewReader(snapshot)))
		return <-ended
	}
	err = restore(record.AppendChecksum(body, 0))
	var format *fsm.FormatError
	require.ErrorAs(t, err, &format)
	require.NotContains(t, err.Error(), "damaged")
	require.NotContains(t, err.Error(), "empty directory")
	require.ErrorContains(t, restore(b.Bytes()[:b.Len()-1]), "replace the node")
}

// What a leader can't decode is refused as not done, and the leader continues. A command that is
// too large for an entry does not pass package api; here it stands for any mistake.
func TestALeaderRefusesWhatItCannotDecode(t *testing.T) {
	inBubble(t, func(b *bubble) {
		leader := b.quietLeader()
		before := leader.Status().RaftIndex
		large := &fsm.OpenSession{Secret: session.Hash{1},
			Settings: session.Settings{TTL: clock.Minute,
				Meta: strings.Repeat("m", fsm.EntryBytesMax)}}
		_, err := leader.Propose(b.Context(), large)
		require.ErrorIs(b, err, ErrUndecodable)
		require.ErrorContains(b, err, "not done")
		require.False(b, errors.Is(err, ErrUnknown))
		require.LessOrEqual(b, leader.Status().RaftIndex, before+1) // a checkpoint at most
		require.NoError(b, b.fence(leader))
		for _, n := range b.nodes {
			require.Empty(b, n.ended)
		}
	})
}
