package api

import (
	"context"
	"errors"
	"time"

	"zamok/api/access"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/fsm"
)

// quotaWatch is how long after a refusal by a limit the leader checks requests against the quotas before it proposes them.
// Reading the state for each request would slow down a cluster that is within its quotas.
const quotaWatch = time.Second

// checkRoom refuses a new session or ticket if too few nodes have disk space, or a quota is reached. Only the leader checks
// quotas; other nodes do not propose. Retransmissions of what the state machine has, and commands that end locks, are not
// refused.
func (s *Server) checkRoom(command fsm.Command) error {
	reason := s.node.NoRoom()
	if met := s.limitMet.Load(); reason == "" && (met == nil || time.Since(*met) > quotaWatch) {
		return nil
	}
	needs, quota := false, ""
	s.node.View(func(m *fsm.Machine) { needs, quota = m.NeedsRoom(command) })
	switch leader, _ := s.node.Leader(); {
	case needs && reason != "":
		return wire.Errorf(zamokpb.Code_CODE_DISK_LOW, "not done: the cluster is low on disk space: %s; new sessions and acquisitions are refused until "+
			"a majority of the nodes has space; held locks stay held", reason)
	case quota != "" && leader == s.cfg.ID:
		return wire.QuotaMet(quota)
	}
	return nil
}

// refusedForRoom reports whether checkRoom has refused a command, or the state machine for the same reason.
func refusedForRoom(err error) bool {
	e := (*wire.Error)(nil)
	return errors.As(err, &e) && (e.Code() == zamokpb.Code_CODE_LIMIT_EXCEEDED || e.Code() == zamokpb.Code_CODE_DISK_LOW)
}

// answered counts a command that arrived then, and has its answer now.
func (s *Server) answered(ctx context.Context, arrived time.Time, refusal *wire.Error) {
	if refusal.Code() == zamokpb.Code_CODE_LIMIT_EXCEEDED {
		now := time.Now()
		s.limitMet.Store(&now)
		if refusal.Info.Field != "" {
			s.limits.Refused(refusal.Info.Field, access.CallerOf(ctx).Account())
		}
	}
	s.metrics.Answered(arrived, refusal)
}
