package peer

import (
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// recording is a stream layer whose connection keeps what is written to it, and has no answer.
type recording struct {
	net.Conn
	net.Listener
	sent bytes.Buffer
}

func (r *recording) Dial(raft.ServerAddress, time.Duration) (net.Conn, error) { return r, nil }
func (r *recording) Read([]byte) (int, error)                                 { return 0, io.EOF }
func (r *recording) Write(b []byte) (int, error) {
	return r.sent.Write(b)
}
func (r *recording) Close() error { return nil }
func (r *recording) Addr() net.Addr {
	return &net.TCPAddr{}
}
func (r *recording) SetDeadline(time.Time) error { return nil }
func (r *recording) Accept() (net.Conn, error) {
	return nil, net.ErrClosed
}

// requestBytes is what n1 sends for each kind of request.
func requestBytes(tb testing.TB) (all [][]byte) {
	as := raft.RPCHeader{ProtocolVersion: 3, ID: []byte(serverOf("n1").ID()),
		Addr: []byte("h1:5751")}
	configuration := raft.EncodeConfiguration(
		raft.Configuration{Servers: []raft.Server{{ID: serverOf("n1").ID(), Address: "h1:5751"}}})
	for _, send := range []func(*raft.NetworkTransport){
		func(t *raft.NetworkTransport) {
			_ = t.AppendEntries("", "",
				&raft.AppendEntriesRequest{RPCHeader: as, Term: 8, PrevLogEntry: 4, PrevLogTerm: 7,
					LeaderCommitIndex: 9, Entries: []*raft.Log{
						{Index: 5, Term: 7, Type: raft.LogConfiguration, Data: configuration},
						{Index: 6, Term: 8, Data: []byte("a command"), AppendedAt: time.Unix(1, 1)},
					}}, &raft.AppendEntriesResponse{})
		},
		func(t *raft.NetworkTransport) {
			_ = t.AppendEntries("", "", &raft.AppendEntriesRequest{RPCHeader: as, Term: 7},
				&raft.AppendEntriesResponse{})
		},
		func(t *raft.NetworkTransport) {
			_ = t.RequestVote("", "",
				&raft.RequestVoteRequest{RPCHeader: as, Term: 9, LastLogIndex: 5, LastLogTerm: 8,
					LeadershipTransfer: true}, &raft.RequestVoteResponse{})
		},
		func(t *raft.NetworkTransport) {
			_ = t.RequestPreVote("", "",
				&raft.RequestPreVoteRequest{RPCHeader: as, Term: 9, LastLogIndex: 5,
					LastLogTerm: 8}, &raft.RequestPreVoteResponse{})
		},
		func(t *raft.NetworkTransport) {
			_ = t.TimeoutNow("", "", &raft.TimeoutNowRequest{RPCHeader: as},
				&raft.TimeoutNowResponse{})
		},
		func(t *raft.NetworkTransport) {
			_ = t.InstallSnapshot("", "",
				&raft.InstallSnapshotRequest{RPCHeader: as, SnapshotVersion: 1, Term: 8,
					LastLogIndex: 5, LastLogTerm: 8,
					Configuration: configuration, ConfigurationIndex: 3, Size: 5},
				&raft.InstallSnapshotResponse{}, strings.NewReader("state"))
		},
	} {
		r := &recording{}
		t := raft.NewNetworkTransportWithConfig(
			&raft.NetworkTransportConfig{Logger: hclog.NewNullLogger(), Stream: r, MaxPool: 1})
		send(t)
		require.NoError(tb, t.Close())
		require.NotEmpty(tb, r.sent.Bytes())
		all = append(all, bytes.Clone(r.sent.Bytes()))
	}
	return all
}

// FuzzRequest sends bytes as a member does once it has passed the handshake. What Raft is given can
// do it no lasting harm: it is of the sender, and neither a term, an index nor a configuration ends
// elections or the process.
func FuzzRequest(f *testing.F) {
	const own = 7
	for _, request := range requestBytes(f) {
		f.Add(request)
	}
	n2 := openNode(f, newTestNetwork(),
		Config{ID: "n2", List: mustList(f, threeNodes), Term: func() uint64 { return own }})
	tr, err := n2.Transport(hclog.NewNullLogger())
	require.NoError(f, err)
	tr.Start(new(raft.Raft))
	beats := make(chan raft.RPC)
	tr.SetHeartbeatHandler(func(request raft.RPC) { beats <- request })
	f.Fuzz(func(t *testing.T, sent []byte) {
		near, far := net.Pipe()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			tr.serve(&stream{Conn: far, raw: far, inbound: true, purpose: purposeRaft,
				remote: Answer{Server: serverOf("n1")}, repliedAt: time.Now()})
		}()
		go func() {
			_, _ = near.Write(sent)
			_ = near.Close()
		}()
		go func() { _, _ = io.Copy(io.Discard, near) }()
		for {
			select {
			case request := <-tr.Consumer():
				checkGiven(t, request, own)
			case request := <-beats:
				checkGiven(t, request, own)
			case <-ended:
				return
			}
		}
	})
}

// checkGiven demands of a request what Raft does not check itself.
func checkGiven(t *testing.T, request raft.RPC, own uint64) {
	defer request.Respond(nil, io.ErrClosedPipe)
	assert.Equal(t, string(serverOf("n1").ID()),
		string(request.Command.(raft.WithRPCHeader).GetRPCHeader().ID))
	var term, logTerm uint64
	switch r := request.Command.(type) {
	case *raft.AppendEntriesRequest:
		term, logTerm = r.Term, r.PrevLogTerm
		assert.LessOrEqual(t, r.LeaderCommitIndex, r.PrevLogEntry+uint64(len(r.Entries)))
		for i, entry := range r.Entries {
			assert.Equal(t, r.PrevLogEntry+1+uint64(i), entry.Index)
			assert.LessOrEqual(t, entry.Term, term)
			assert.Contains(t, []raft.LogType{raft.LogCommand, raft.LogNoop, raft.LogBarrier,
				raft.LogConfiguration}, entry.Type)
			if entry.Type == raft.LogConfiguration {
				assert.NotEmpty(t, raft.DecodeConfiguration(entry.Data).Servers)
			}
		}
	case *raft.RequestVoteRequest:
		term, logTerm = r.Term, r.LastLogTerm
	case *raft.RequestPreVoteRequest:
		term, logTerm = r.Term, r.LastLogTerm
	case *raft.InstallSnapshotRequest:
		term, logTerm = r.Term, r.LastLogTerm
		assert.LessOrEqual(t, r.LastLogIndex, uint64(lastIndexMax))
		assert.LessOrEqual(t, r.ConfigurationIndex, r.LastLogIndex)
		assert.NotEmpty(t, raft.DecodeConfiguration(r.Configuration).Servers)
		n, _ := io.Copy(io.Discard, request.Reader)
		assert.LessOrEqual(t, n, max(r.Size, 0))
	}
	assert.LessOrEqual(t, term, own+termAdvanceMax)
	assert.LessOrEqual(t, logTerm, term)
}

// FuzzHandshake connects and sends bytes. What is accepted was intended for this server, by a
// server of its cluster, and is from the one that its first frame names; otherwise nothing that
// follows the frame is used.
func FuzzHandshake(f *testing.F) {
	list := mustList(f, threeNodes)
	from := Answer{Server: serverOf("n1"), Generation: 1, Cluster: clusterOf("home"), List: list,
		Condition: Condition{Initial: initialMembersOf(list)}}
	for _, purpose := range []purpose{purposeRaft, purposeAsk, purposeCall, purposeRelay} {
		hello := &hello{purpose, serverOf("n2"), from}
		if purpose == purposeAsk {
			hello.Server = Server{}
		}
		var sent bytes.Buffer
		require.NoError(f, writeFrame(&sent, hello))
		proceed := &payload{as: kindProceed}
		if purpose == purposeCall {
			proceed.Body = []byte("how far are you?")
		}
		require.NoError(f, writeFrame(&sent, proceed))
		f.Add(append(sent.Bytes(), "then what follows"...))
	}
	var called *Server
	n2 := openNode(f, newTestNetwork(), Config{ID: "n2", List: list, Cluster: clusterOf("home"),
		Handle: func(_ context.Context, from Server, request []byte) []byte {
			called = &from
			return request
		}})
	tr, err := n2.Transport(hclog.NewNullLogger())
	require.NoError(f, err)
	tr.Start(new(raft.Raft))
	f.Fuzz(func(t *testing.T, sent []byte) {
		called = nil
		near, far := net.Pipe()
		received, ended := make(chan []byte), make(chan struct{})
		go func() {
			defer close(ended)
			n2.receive(t.Context(), far, func() {})
		}()
		go func() {
			_, _ = near.Write(sent)
			_ = near.Close()
		}()
		go func() {
			answer, _ := io.ReadAll(near)
			received <- answer
		}()
		accepted := (*Server)(nil)
		for open := true; open; {
			select {
			case request := <-tr.Consumer():
				accepted = &Server{
					Name: NameOf(raft.ServerID(
						request.Command.(raft.WithRPCHeader).GetRPCHeader().ID))}
				request.Respond(nil, io.ErrClosedPipe)
			case s := <-n2.relays:
				accepted = &s.remote.Server
				_ = s.Close()
			case <-ended:
				open = false
			}
		}
		if called != nil {
			accepted = called
		}
		assert.LessOrEqual(t, len(<-received), 2*(preambleBytes+frameBytesMax))
		if accepted == nil {
			return
		}
		var first hello
		require.NoError(t, readFrame(bytes.NewReader(sent), &first))
		assert.Equal(t, accepted.Name, first.From.Name)
		assert.Equal(t, serverOf("n2"), first.Server)
		assert.True(t, first.From.Cluster == clusterOf("home") ||
			first.From.Cluster == ClusterID{} && first.From.Initial == initialMembersOf(list))
	})
}
