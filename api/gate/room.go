package gate

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/fsm"
)

// quotaWatch is how long after a refusal by a limit the leader checks requests against the quotas
// before it proposes them. Reading the state for each request would slow down a cluster that is
// within its quotas.
const quotaWatch = time.Second

// checkRoom refuses a new session or ticket if too few nodes have disk space, or a quota is
// reached. Only the leader checks quotas; other nodes do not propose. Retransmissions of what the
// state machine has, and commands that end locks, are not refused.
func (g *Gate) checkRoom(ctx context.Context, c Caller, d *Request, in Stream,
	request proto.Message) error {
	if d.adds == nil {
		return nil
	}
	reason := g.node.NoRoom()
	if met := g.limitMet.Load(); reason == "" && (met == nil || time.Since(*met) > quotaWatch) {
		return nil
	}
	needs, quota := false, ""
	g.node.View(func(m *fsm.Machine) {
		if command := d.adds(m, c, in, request); command != nil {
			needs, quota = m.NeedsRoom(command)
		}
	})
	var e *wire.Error
	switch leader, _ := g.node.Leader(); {
	case needs && reason != "":
		e = wire.Errorf(zamokpb.Code_CODE_DISK_LOW,
			"not done: the cluster is low on disk space: %s; new sessions and acquisitions are "+
				"refused until a majority of the nodes has space; held locks stay held", reason)
	case quota != "" && leader == g.ID:
		e = wire.QuotaMet(quota)
	default:
		return nil
	}
	if d.Method != "" { // else the stream counts its answer
		g.Answered(ctx, time.Now(), e)
	}
	return e
}

// Answered counts a command that arrived then, and has its answer now.
func (g *Gate) Answered(ctx context.Context, arrived time.Time, refusal *wire.Error) {
	if refusal.Code() == zamokpb.Code_CODE_LIMIT_EXCEEDED {
		now := time.Now()
		g.limitMet.Store(&now)
		if refusal.Info.Field != "" {
			g.Limits.CountRefusal(refusal.Info.Field, CallerOf(ctx).Principal())
		}
	}
	g.Metrics.Answered(arrived, refusal)
}
