package service

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"math"
	"slices"

	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/raftnode/peer"
	"zamok/session"
)

const (
	// backupChunkBytes is how much of a backup one message carries.
	backupChunkBytes = 64 << 10
	// backupsMax bounds the backups that are being streamed: while its reader reads, each keeps in
	// memory what has changed of the state since it began.
	backupsMax = 2
)

// ForceRelease ends the tickets that hold a lock with a token up to the one that the operator saw.
func (s *Service) ForceRelease(ctx context.Context,
	req *zamokpb.ForceReleaseRequest) (*zamokpb.ForceReleaseResponse, error) {
	a, err := s.propose(ctx,
		&fsm.ForceRelease{Name: req.Name, Token: req.Token, Reason: req.Reason})
	if err != nil {
		return nil, err
	}
	return &zamokpb.ForceReleaseResponse{Ended: wire.Each(a.Result.Detail.Ended, wire.TicketRef),
		More: uint32(a.Result.Detail.More)}, nil
}

// ExpireSession ends a session at an operator's request.
func (s *Service) ExpireSession(ctx context.Context,
	req *zamokpb.ExpireSessionRequest) (*zamokpb.ExpireSessionResponse, error) {
	_, err := s.propose(ctx,
		&fsm.ExpireSession{Session: session.ID(req.Session), Reason: req.Reason})
	return &zamokpb.ExpireSessionResponse{}, err
}

// Members lists the nodes of the cluster with what each announced.
func (s *Service) Members(ctx context.Context,
	_ *zamokpb.MembersRequest) (*zamokpb.MembersResponse, error) {
	answer := &zamokpb.MembersResponse{}
	records := make(map[string]fsm.MemberRecord)
	err := s.read(ctx, func(m *fsm.Machine) {
		for _, member := range m.Members() {
			records[member.ID] = member
		}
		cluster := m.Cluster()
		answer.Cluster, answer.Stamp, answer.HoldOff = hex.EncodeToString(cluster[:]),
			wire.StampOf(m), int64(m.HoldOff())
	})
	if err != nil {
		return nil, err
	}
	answer.Leader, _ = s.node.Leader()
	answer.ElectionTimeout, answer.ShortTtls = int64(s.node.Timeout()), uint64(s.node.ShortTTLs())
	for _, server := range s.node.Servers() {
		announced := records[server.ID]
		member := &zamokpb.Member{
			Id: server.ID, Client: announced.Client, Peer: server.Peer, Http: announced.HTTP,
			Version: announced.Version,
			Voter:   server.Voter, Leader: server.ID == answer.Leader,
			Incarnation: server.Incarnation.String(),
			FreeBytes:   announced.FreeBytes,
			DiskLow:     announced.FreeBytes < announced.LowSpaceThreshold, Behind: server.Behind,
		}
		if member.FreeBytes == math.MaxUint64 { // its data is in memory
			member.FreeBytes = 0
		}
		if server.Contact != nil {
			member.LastContact = new(int64(*server.Contact))
		}
		answer.Members = append(answer.Members, member)
	}
	return answer, nil
}

// Join adds a node to the cluster, and waits until it has a vote.
func (s *Service) Join(ctx context.Context,
	req *zamokpb.JoinRequest) (*zamokpb.JoinResponse, error) {
	list, err := peer.ParseList(req.Id + "=" + req.Peer)
	if err == nil {
		err = s.node.Join(ctx, list.Nodes()[0])
	}
	return &zamokpb.JoinResponse{}, membershipError(err)
}

// Remove removes a node from the cluster.
func (s *Service) Remove(ctx context.Context,
	req *zamokpb.RemoveRequest) (*zamokpb.RemoveResponse, error) {
	return &zamokpb.RemoveResponse{}, membershipError(s.node.Remove(ctx, req.Id))
}

// Transfer transfers leadership to another node.
func (s *Service) Transfer(ctx context.Context,
	req *zamokpb.TransferRequest) (*zamokpb.TransferResponse, error) {
	return &zamokpb.TransferResponse{}, membershipError(s.node.Transfer(ctx, req.To))
}

// membershipError explains why a change of the cluster was not made. If the node does not know
// whether it was, the outcome is unknown, and the message names what to look at.
func membershipError(err error) error {
	if err == nil {
		return nil
	}
	if change, ok := errors.AsType[*raftnode.ChangeError](err); ok {
		err = change.Reason // the caller knows what it requested
	}
	e := wire.Explain(err)
	switch {
	case e.Code() != zamokpb.Code_CODE_INTERNAL:
		return e
	case errors.Is(err, raftnode.ErrRefused):
		return wire.Errorf(zamokpb.Code_CODE_REFUSED, "%v", err)
	}
	return wire.Errorf(zamokpb.Code_CODE_UNKNOWN,
		"%v; look at the members, and start the nodes that are down", err)
}

// Settings changes the longest ttl or the quotas that the request names, and returns all as they
// are then.
func (s *Service) Settings(ctx context.Context,
	req *zamokpb.SettingsRequest) (*zamokpb.SettingsResponse, error) {
	var command fsm.Command
	if req.LongestTtl != 0 {
		command = &fsm.SetLongestTTL{TTL: clock.Span(req.LongestTtl)}
	} else if q := wire.FromQuotas(req.Quotas); q != (fsm.Quotas{}) {
		command = &fsm.SetQuotas{Quotas: q}
	}
	var err error
	if command != nil {
		_, err = s.propose(ctx, command) // this node has applied it then
	} else if _, _, unread := s.node.ReadBarrier(ctx); unread != nil {
		err = wire.Explain(unread)
	}
	answer := &zamokpb.SettingsResponse{}
	if err == nil && req.Identities > 0 {
		answer.Identities, err = s.heaviest(ctx, int(req.Identities))
	}
	s.node.View(func(m *fsm.Machine) {
		answer.LongestTtl, answer.RestoreHoldOff = int64(m.LongestTTL()), int64(m.RestoreHoldOff())
		answer.Quotas, answer.Used = wire.Quotas(m.Quotas()),
			wire.Quotas(fsm.Quotas{Amounts: m.Used()})
	})
	return answer, err
}

// heaviest returns the identities that use the largest part of a quota of theirs.
func (s *Service) heaviest(ctx context.Context,
	limit int) (heaviest []*zamokpb.IdentityUsage, err error) {
	var usages []fsm.IdentityUsage
	var quota fsm.Amounts
	err = s.read(ctx, func(m *fsm.Machine) { usages, quota = m.Usages(), m.Quotas().OfIdentity() })
	part := func(u fsm.IdentityUsage) float64 {
		return max(float64(u.Sessions)/float64(quota.Sessions),
			float64(u.Tickets)/float64(quota.Tickets), float64(u.Bytes)/float64(quota.Bytes))
	}
	slices.SortFunc(usages, func(a, b fsm.IdentityUsage) int {
		return cmp.Or(cmp.Compare(part(b), part(a)), cmp.Compare(a.Identity, b.Identity))
	})
	for _, u := range usages[:min(limit, len(usages))] {
		heaviest = append(heaviest,
			&zamokpb.IdentityUsage{Identity: u.Identity,
				Used: wire.Quotas(fsm.Quotas{Amounts: u.Amounts})})
	}
	return heaviest, err
}

// Backup streams the state of the cluster as it is at one index after the call.
func (s *Service) Backup(ctx context.Context, send func(*zamokpb.BackupChunk) error) error {
	select {
	case s.backingUp <- struct{}{}:
		defer func() { <-s.backingUp }()
	default:
		return wire.Errorf(zamokpb.Code_CODE_OVERLOADED,
			"not done: this node streams %d backups already; wait for one, or end it", backupsMax)
	}
	if _, _, err := s.node.ReadBarrier(ctx); err != nil {
		return wire.Explain(err)
	}
	_, err := s.node.Freeze().WriteTo(chunks(send))
	return err
}

// chunks sends what is written. A chunk was encoded when it returns, so the buffer may be used
// again.
type chunks func(*zamokpb.BackupChunk) error

func (send chunks) Write(p []byte) (int, error) {
	for chunk := range slices.Chunk(p, backupChunkBytes) {
		if err := send(&zamokpb.BackupChunk{Data: chunk}); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}
