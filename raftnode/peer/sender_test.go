package peer

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A server speaks for itself only. Raft has nothing but the name in a request: it votes for the one
// that it names, or, if it names none, for the sender.
func TestNoServerSpeaksForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, all := threeRunning(t)
		defer w.stopAll()
		leader := w.leader(20*time.Second, all[:]...)
		require.NotNil(t, leader)
		term := leader.CurrentTerm()
		// n4 passes the handshake: it knows the initial members, and it intends the server that it
		// reaches.
		outsider := openNode(t, w.testNetwork, Config{ID: "n4", List: leader.list})
		defer outsider.Close()
		tr, err := outsider.Transport(leader.config().Logger)
		require.NoError(t, err)
		at := raft.ServerAddress(leader.address)
		for _, name := range []string{"", "n2", string(all[0].ID()), string(all[1].ID()),
			string(all[2].ID())} {
			as := raft.RPCHeader{ProtocolVersion: 3, ID: []byte(name), Addr: []byte(all[1].address)}
			for kind, err := range map[string]error{
				"vote": tr.RequestVote(leader.ID(), at, &raft.RequestVoteRequest{
					RPCHeader: as, Term: term + 1, LastLogIndex: 1 << 20, LastLogTerm: term,
					LeadershipTransfer: true}, &raft.RequestVoteResponse{}),
				"pre-vote": tr.RequestPreVote(leader.ID(), at,
					&raft.RequestPreVoteRequest{RPCHeader: as, Term: term + 1},
					&raft.RequestPreVoteResponse{}),
				"append": tr.AppendEntries(leader.ID(), at, &raft.AppendEntriesRequest{
					RPCHeader: as, Term: term + 1, LeaderCommitIndex: 1},
					&raft.AppendEntriesResponse{}),
				"heartbeat": tr.AppendEntries(leader.ID(), at,
					&raft.AppendEntriesRequest{RPCHeader: as, Term: term + 1},
					&raft.AppendEntriesResponse{}),
				"transfer": tr.TimeoutNow(leader.ID(), at, &raft.TimeoutNowRequest{RPCHeader: as},
					&raft.TimeoutNowResponse{}),
				"snapshot": tr.InstallSnapshot(leader.ID(), at, &raft.InstallSnapshotRequest{
					RPCHeader: as, SnapshotVersion: 1, Term: term + 1, LastLogIndex: 1 << 20,
					LastLogTerm: term, Size: 1}, &raft.InstallSnapshotResponse{},
					strings.NewReader("x")),
			} {
				assert.ErrorContains(t, err, fmt.Sprintf("in the name of %q", name), kind)
			}
		}
		// In its own name it is answered, and gets no vote: it is no server of the configuration.
		var vote raft.RequestVoteResponse
		require.NoError(t, tr.RequestVote(leader.ID(), at, &raft.RequestVoteRequest{
			RPCHeader: tr.header(), Term: term + 1, LastLogIndex: 1 << 20, LastLogTerm: term,
			LeadershipTransfer: true}, &vote))
		assert.False(t, vote.Granted)
		assert.Equal(t, raft.Leader, leader.State())
		assert.Equal(t, term, leader.CurrentTerm())
		w.write("after ", 1, all[:]...)
		assert.Contains(t, leader.member.logs.String(), "n4@")
	})
}

// A request has a bound, whatever it claims and however long it goes on; a snapshot may be longer.
func TestARequestThatDoesNotEndIsCutOff(t *testing.T) {
	called := openTCP(t, Config{ID: "n2"})
	defer called.Close()
	openTransport(t, called)
	caller := openTCP(t, Config{ID: "n1"})
	defer caller.Close()
	s := &stream{purpose: purposeRaft}
	require.NoError(t, caller.dial(t.Context(),
		Node{serverOf("n2").String(), called.config.Advertise}, s, nil))
	defer s.Close()
	// its length comes first
	sent, entry := int64(0), "\x81\xa4Data\xc6\x00\x80\x00\x00"+strings.Repeat("x", 8<<20)
	_, err := io.WriteString(s, "\x00\x81\xa7Entries\xdc\x00\x64")
	for err == nil && sent < 2*requestBytesMax {
		var n int
		n, err = io.WriteString(s, entry)
		sent += int64(n)
	}
	require.Error(t, err, "%d bytes were taken", sent)
}

// A node has one large request under way: another one ends it, also while Raft has not taken it,
// and ends none of another node.
func TestANodeHasOneLargeRequest(t *testing.T) {
	called := openTCP(t, Config{ID: "n2"})
	defer called.Close()
	tr := openTransport(t, called)
	dial := func(from testNode) *stream {
		s := &stream{purpose: purposeRaft}
		require.NoError(t, from.dial(t.Context(),
			Node{serverOf("n2").String(), called.config.Advertise}, s, nil))
		t.Cleanup(func() { s.Close() })
		return s
	}
	large := func(s *stream, name string) {
		t.Helper()
		// an append with an entry of 8 MiB
		_, err := io.WriteString(s, "\x00\x81\xa7Entries\x91\x81\xa4Data\xc6\x00\x80\x00\x00")
		require.NoError(t, err)
		_, err = s.Write(make([]byte, 4*largeBytes))
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			tr.mu.Lock()
			defer tr.mu.Unlock()
			return tr.large[name] != nil &&
				tr.large[name].raw.RemoteAddr().String() == s.raw.LocalAddr().String()
		}, 10*time.Second, time.Millisecond)
	}
	n1, n3 := openTCP(t, Config{ID: "n1"}), openTCP(t, Config{ID: "n3"})
	defer n1.Close()
	defer n3.Close()
	first, other := dial(n1), dial(n3)
	large(first, "n1")
	large(other, "n3")
	second := dial(n1)
	large(second, "n1")
	require.NoError(t, first.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err := first.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "it is closed")
	for _, s := range []*stream{second, other} {
		require.NoError(t, s.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
		_, err = s.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded, "it is open")
	}

	// One that waits for Raft ends, too.
	ended, answer := make(chan struct{}), make(chan raft.RPCResponse, 1)
	close(ended)
	(&Transport{ctx: t.Context(), requests: make(chan raft.RPC)}).handToRaft(
		&inboundConn{ended: ended}, raft.RPC{RespChan: answer})
	require.Error(t, (<-answer).Error)
}

// A node that connects again and again has the connections that a node needs, and no other loses
// one for it.
func TestANodeHasSoManyConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, all := threeRunning(t)
		defer w.stopAll()
		n1, n2, n3 := all[0], all[1], all[2]
		from := func(name string) (conns int) {
			n2.trans.mu.Lock()
			defer n2.trans.mu.Unlock()
			for s := range n2.trans.open {
				if s.inbound && s.remote.Name == name {
					conns++
				}
			}
			return conns
		}
		request := raft.RequestPreVoteRequest{RPCHeader: n3.trans.header()}
		require.NoError(t, n3.trans.RequestPreVote(n2.ID(), raft.ServerAddress(n2.address),
			&request, &raft.RequestPreVoteResponse{}))
		others := from("n3")
		require.Positive(t, others)
		for range 3 * inboundConnsMax {
			s := &stream{purpose: purposeRaft}
			require.NoError(t, n1.member.dial(t.Context(), Node{string(n2.ID()), n2.address},
				s, nil))
			defer s.Close()
		}
		synctest.Wait()
		assert.Equal(t, inboundConnsMax, from("n1"))
		assert.Equal(t, others, from("n3"))
		assert.Contains(t, n2.member.logs.String(), "too many connections from a peer")
		w.write("after ", 1, all[:]...)
	})
}

// What a request takes in memory is bounded before it is decoded: an empty entry is one byte on the
// line, and a length may be of bytes that never come.
func TestARequestTakesAboutItsBytes(t *testing.T) {
	called := openTCP(t, Config{ID: "n2"})
	defer called.Close()
	openTransport(t, called)
	caller := openTCP(t, Config{ID: "n1"})
	defer caller.Close()
	const values = 2 << 20
	entries := "\xa7Entries\xdd" + string(binary.BigEndian.AppendUint32(nil, values)) +
		strings.Repeat("\x80", values)
	for name, request := range map[string]string{
		"many entries":           "\x00\x81" + entries,
		"a value of 1 GiB":       "\x00\x81\xa7Entries\x91\x81\xaaAppendedAt\xdb\x40\x00\x00\x00",
		"behind another request": "\x03\x80\x00\x81" + entries,
		"behind a snapshot":      "\x02\x81\xa4Size\x01\x00\x00\x81" + entries,
	} {
		t.Run(name, func(t *testing.T) {
			s := &stream{purpose: purposeRaft}
			require.NoError(t, caller.dial(t.Context(),
				Node{serverOf("n2").String(), called.config.Advertise}, s, nil))
			defer s.Close()
			require.NoError(t, s.SetDeadline(time.Now().Add(5*time.Second)))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, _ = io.WriteString(s, request)
			_, err := io.Copy(io.Discard, s)
			runtime.ReadMemStats(&after)
			assert.NotErrorIs(t, err, os.ErrDeadlineExceeded, "it is closed")
			assert.Less(t, int64(after.TotalAlloc-before.TotalAlloc), int64(32<<20), "bytes")
		})
	}
}

// A request of ours passes, and ends where Raft ends it, however it is cut on its way.
func TestRequestsAreFollowedToTheirEnd(t *testing.T) {
	for _, sent := range requestBytes(t) {
		whole, bytewise := newRequest(), newRequest()
		require.NoError(t, whole.read(sent))
		for _, b := range sent {
			require.NoError(t, bytewise.read([]byte{b}))
		}
		assert.Equal(t, whole, bytewise)
		assert.True(t, whole.value.ended())
		assert.Equal(t, int64(strings.Count(string(sent), "state")*len("state")), whole.behind,
			"of the snapshot")
		short := newRequest()
		require.NoError(t, short.read(sent[:len(sent)-int(whole.behind)-1]))
		assert.False(t, short.value.ended())
	}
	for _, kind := range []byte{0xc1, 0xc7, 0xca, 0xd4, 0xe0, 0xff} {
		value := newValueReader()
		_, err := value.read([]byte{kind})
		assert.ErrorContains(t, err, "which Raft does not send")
	}
}

// What a node answers is bounded as well.
func TestAnAnswerThatDoesNotEndIsCutOff(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	go func() {
		_, _ = io.Copy(io.Discard, far)
	}()
	go func() {
		for block := make([]byte, 1<<10); ; {
			if _, err := far.Write(block); err != nil {
				return
			}
		}
	}()
	c := &outboundConn{stream: &stream{Conn: near, remote: Answer{Server: serverOf("n2")}},
		left: answerBytesMax}
	for range 2 { // of each call
		_, err := c.Write([]byte("a request"))
		require.NoError(t, err)
		n, err := io.Copy(io.Discard, c)
		require.ErrorContains(t, err, "longer than 65536 bytes; nothing was changed here")
		require.EqualValues(t, answerBytesMax, n)
	}
}
