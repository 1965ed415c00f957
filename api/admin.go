package api

import (
	"context"
	"encoding/hex"
	"errors"
	"math"
	"strings"

	"google.golang.org/grpc"

	"zamok/api/zamokpb"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/raftnode/peer"
	"zamok/session"
)

const (
	// backupChunkBytes is how much of a backup one message carries.
	backupChunkBytes = 64 << 10
	// backupsMax bounds the backups that are being streamed: each keeps the state of its beginning in memory, as far
	// as that has changed since, for as long as its reader takes.
	backupsMax = 2
)

// ForceRelease ends the tickets that hold a lock with a token up to what the operator saw.
func (s *Server) ForceRelease(ctx context.Context, req *zamokpb.ForceReleaseRequest) (*zamokpb.ForceReleaseResponse, error) {
	f := checkName(req.Name)
	if f == nil && req.Token == 0 {
		f = invalid("token", "is 0: give the token that you saw, so that no grant ends that you did not see")
	}
	if f == nil {
		f = checkText("reason", req.Reason, fsm.ReasonBytesMax)
	}
	if f == nil {
		f = s.may(ctx, VerbForce, req.Name)
	}
	if f != nil {
		return nil, f
	}
	a, err := s.propose(ctx, &fsm.ForceRelease{Name: req.Name, Token: req.Token, Reason: req.Reason})
	if err != nil {
		return nil, err
	}
	return &zamokpb.ForceReleaseResponse{Ended: toRefs(a.Result.Detail.Ended), More: uint32(a.Result.Detail.More)}, nil
}

// ExpireSession ends a session at an operator's word.
func (s *Server) ExpireSession(ctx context.Context, req *zamokpb.ExpireSessionRequest) (*zamokpb.ExpireSessionResponse, error) {
	f := checkText("reason", req.Reason, fsm.ReasonBytesMax)
	if f == nil && req.Session == 0 {
		f = invalid("session", "is 0, which no session has")
	}
	if f == nil {
		f = s.may(ctx, VerbForce, "")
	}
	if f != nil {
		return nil, f
	}
	if _, err := s.propose(ctx, &fsm.ExpireSession{Session: session.ID(req.Session), Reason: req.Reason}); err != nil {
		return nil, err
	}
	return &zamokpb.ExpireSessionResponse{}, nil
}

// Members lists the nodes of the cluster with what each announced.
func (s *Server) Members(ctx context.Context, _ *zamokpb.MembersRequest) (*zamokpb.MembersResponse, error) {
	if f := s.may(ctx, VerbMembers, ""); f != nil {
		return nil, f
	}
	answer := &zamokpb.MembersResponse{}
	announced := make(map[string]fsm.MemberRecord)
	err := s.read(ctx, func(m *fsm.Machine) {
		for _, member := range m.Members() {
			announced[member.ID] = member
		}
		cluster := m.Cluster()
		answer.Cluster, answer.Stamp, answer.HoldOff = hex.EncodeToString(cluster[:]), stampOf(m), int64(m.HoldOff())
	})
	if err != nil {
		return nil, err
	}
	answer.Leader, _ = s.node.Leader()
	answer.ElectionTimeout = int64(s.node.Timeout())
	contacts := s.node.Contacts()
	for _, server := range s.node.Servers() {
		said := announced[server.ID]
		member := &zamokpb.Member{
			Id: server.ID, Client: said.Client, Peer: server.Peer, Http: said.HTTP, Version: said.Version,
			Voter: server.Voter, Leader: server.ID == answer.Leader, Incarnation: server.Incarnation.String(),
			FreeBytes: known(said.FreeBytes), DiskLow: said.FreeBytes < said.LowSpaceThreshold,
		}
		if contact, other := contacts[server.ID]; other {
			member.LastHeard = new(int64(contact.Ago))
			if contact.Reached {
				member.Behind = new(contact.Behind)
			}
		}
		answer.Members = append(answer.Members, member)
	}
	return answer, nil
}

// Join takes a new node into the cluster, and waits until it has a vote.
func (s *Server) Join(ctx context.Context, req *zamokpb.JoinRequest) (*zamokpb.JoinResponse, error) {
	list, err := peer.ParseList(req.Id + "=" + req.Peer)
	f := s.may(ctx, VerbChange, req.Id)
	switch {
	case peer.CheckID(req.Id) != nil:
		f = invalid("id", "%v", peer.CheckID(req.Id))
	case err != nil:
		f = invalid("peer", "%v", err)
	case len(list.Nodes()) != 1:
		f = invalid("peer", "%q is more than one address", req.Peer)
	}
	if f != nil {
		return nil, f
	}
	if err := s.node.Join(ctx, list.Nodes()[0]); err != nil {
		return nil, unchanged(err)
	}
	return &zamokpb.JoinResponse{}, nil
}

// Remove takes a node out of the cluster.
func (s *Server) Remove(ctx context.Context, req *zamokpb.RemoveRequest) (*zamokpb.RemoveResponse, error) {
	f := s.checkMember(req.Id)
	if f == nil {
		f = s.may(ctx, VerbChange, req.Id)
	}
	if f != nil {
		return nil, f
	}
	if err := s.node.Remove(ctx, req.Id); err != nil {
		return nil, unchanged(err)
	}
	return &zamokpb.RemoveResponse{}, nil
}

// Transfer hands the leadership to another node.
func (s *Server) Transfer(ctx context.Context, req *zamokpb.TransferRequest) (*zamokpb.TransferResponse, error) {
	var f *failure
	if req.To != "" {
		f = s.checkMember(req.To)
	}
	if f == nil {
		f = s.may(ctx, VerbChange, req.To)
	}
	if f != nil {
		return nil, f
	}
	if err := s.node.Transfer(ctx, req.To); err != nil {
		return nil, unchanged(err)
	}
	return &zamokpb.TransferResponse{}, nil
}

// checkMember checks that the cluster has such a node, as far as this one knows.
func (s *Server) checkMember(id string) *failure {
	for _, server := range s.node.Servers() {
		if server.ID == id {
			return nil
		}
	}
	return invalid("id", "%q is no node of this cluster, as far as %s knows", id, s.id)
}

// known is 0 for what a node with its data in memory announces as its free space.
func known(free uint64) uint64 {
	if free == math.MaxUint64 {
		return 0
	}
	return free
}

// unchanged explains why a change of the cluster was not made. Where the node does not know whether it
// was, the code says so, and the message what to look at.
func unchanged(err error) *failure {
	f := explain(err)
	switch {
	case f.info.Code != zamokpb.Code_CODE_INTERNAL:
		return f
	case errors.Is(err, raftnode.ErrRefused):
		return fail(zamokpb.Code_CODE_REFUSED, "%s", strings.TrimPrefix(err.Error(), "raftnode: "))
	}
	return fail(zamokpb.Code_CODE_UNKNOWN, "%v; look at the members, and start the nodes that are down", err)
}

// Backup streams the state of the cluster as it is at one index after the call.
func (s *Server) Backup(_ *zamokpb.BackupRequest, stream grpc.ServerStreamingServer[zamokpb.BackupChunk]) error {
	ctx := stream.Context()
	if f := s.may(ctx, VerbBackup, ""); f != nil {
		return f
	}
	select {
	case s.backingUp <- struct{}{}:
		defer func() { <-s.backingUp }()
	default:
		return fail(zamokpb.Code_CODE_OVERLOADED, "not done: this node streams %d backups already; wait for one, or end it", backupsMax)
	}
	if _, _, err := s.node.Fence(ctx); err != nil {
		return explain(err)
	}
	_, err := s.node.Freeze().WriteTo(chunks{stream})
	return err
}

// chunks sends what is written.
type chunks struct {
	stream grpc.ServerStreamingServer[zamokpb.BackupChunk]
}

func (c chunks) Write(p []byte) (int, error) {
	for sent := 0; sent < len(p); {
		n := min(len(p)-sent, backupChunkBytes)
		// gRPC has encoded the chunk when Send returns, so the buffer may be used again.
		if err := c.stream.Send(&zamokpb.BackupChunk{Data: p[sent : sent+n]}); err != nil {
			return sent, err
		}
		sent += n
	}
	return len(p), nil
}
