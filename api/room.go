package api

import (
	"errors"
	"time"

	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/fsm"
)

// quotaWatch is for how long after a refusal because of a limit the leader compares requests with the quotas before it
// proposes them. To read the state for each request would slow down a cluster that has room.
const quotaWatch = time.Second

// checkRoom refuses a session or a ticket for which the cluster has no room: too few nodes have room on their disks, or a
// quota is used up. The leader decides that; another node refuses because it does not lead. What is known already may be
// requested again, and what ends locks continues. Whether a copy of the command was proposed before is not looked at.
func (s *Server) checkRoom(command fsm.Command) error {
	reason := s.node.NoRoom()
	if met := s.limitMet.Load(); reason == "" && (met == nil || time.Since(*met) > quotaWatch) {
		return nil
	}
	needs, quota := false, ""
	s.node.View(func(m *fsm.Machine) { needs, quota = m.NeedsRoom(command) })
	switch leader, _ := s.node.Leader(); {
	case needs && reason != "":
		return wire.Errorf(zamokpb.Code_CODE_DISK_LOW, "not done: the cluster is short of disk: %s; no new sessions and acquisitions until "+
			"there is room on a majority; locks that are held stay so", reason)
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
func (s *Server) answered(arrived time.Time, refusal *wire.Error) {
	if refusal.Code() == zamokpb.Code_CODE_LIMIT_EXCEEDED {
		now := time.Now()
		s.limitMet.Store(&now)
	}
	s.metrics.Answered(arrived, refusal)
}
