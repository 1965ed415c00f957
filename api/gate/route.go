package gate

import (
	"context"
	"encoding/hex"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/fsm"
	"zamok/raftnode/peer"
)

// Relay passes calls on to the leader.
type Relay interface {
	Call(ctx context.Context, leader peer.Server, d *Request,
		request proto.Message) (proto.Message, error)
	Stream(ctx context.Context, leader peer.Server, d *Request, messages Messages) error
}

// route refuses a call for another cluster. It returns the leader if the call is to be relayed.
// Nil: the call is this node's own to answer.
func (g *Gate) route(ctx context.Context, d *Request) (leader *peer.Server, err error) {
	from := arrivalOf(ctx)
	if err := g.checkCluster(from.Clusters); err != nil {
		return nil, err
	}
	if from.Via != nil {
		if !g.node.HasServer(*from.Via) {
			return nil, wire.Errorf(zamokpb.Code_CODE_NOT_LEADER,
				"not done: %s, which relayed this, is no node of this cluster as far as %s "+
					"knows; use another node", from.Via.Name, g.ID)
		}
		return nil, nil
	}
	if !from.Relay || d.Local {
		return nil, nil
	}
	led := g.node.LeaderServer()
	if led == (peer.Server{}) || led.Name == g.ID {
		return nil, nil // the answer of this node has the reason
	}
	return &led, nil
}

// LearnCluster keeps the id of this node's cluster, once the state machine has it. A state machine
// that starts over, because raft was closed and opened, does not have it for a while: the cluster
// is the same. The caller holds the lock of the state machine.
func (g *Gate) LearnCluster(m *fsm.Machine) {
	if id := m.Cluster(); g.cluster.Load() == nil && id != (fsm.ClusterID{}) {
		text := hex.EncodeToString(id[:])
		g.cluster.Store(&text)
	}
}

// Cluster is the id of this node's cluster; "": it is not known yet.
func (g *Gate) Cluster() string {
	if own := g.cluster.Load(); own != nil {
		return *own
	}
	return ""
}

// checkCluster refuses a request that names another cluster than this node's, before it is relayed
// or carried out.
func (g *Gate) checkCluster(named []string) error {
	own := g.Cluster()
	if own == "" && len(named) > 0 {
		return wire.Errorf(zamokpb.Code_CODE_NOT_LEADER,
			"not done: %s does not know yet which cluster it belongs to: no leader has reached "+
				"it since it started", g.ID)
	}
	if !slices.ContainsFunc(named, func(cluster string) bool { return cluster != own }) {
		return nil
	}
	e := wire.Errorf(zamokpb.Code_CODE_WRONG_CLUSTER,
		"not done: %s belongs to cluster %s, and the request is for cluster %s", g.ID, own,
		strings.Join(named, ", "))
	e.Info.Cluster = own
	return e
}
