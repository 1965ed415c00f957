package api

import (
	"context"
	"encoding/hex"
	"slices"
	"strings"

	"google.golang.org/grpc/metadata"

	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/fsm"
)

// clusterKey is the metadata in which a request names its cluster, and every answer the cluster of the node.
const clusterKey = "zamok-cluster"

// noteCluster keeps the id of this node's cluster, once the state machine has it. A state machine that starts
// over, because raft was closed and opened, does not have it for a while: the cluster is the same. The caller
// holds the lock of the state machine.
func (s *Server) noteCluster(m *fsm.Machine) {
	id := m.Cluster()
	if id == s.clusterID || id == (fsm.ClusterID{}) {
		return
	}
	s.clusterID = id
	text := hex.EncodeToString(id[:])
	s.cluster.Store(&text)
}

// checkCluster refuses a request that names another cluster than this node's, before it is relayed or
// handled.
func (s *Server) checkCluster(ctx context.Context, header func(metadata.MD) error) error {
	own, named := s.cluster.Load(), metadata.ValueFromIncomingContext(ctx, clusterKey)
	if own == nil {
		if len(named) == 0 {
			return nil
		}
		return wire.Errorf(zamokpb.Code_CODE_NOT_LEADER,
			"not done: %s does not know yet which cluster it belongs to: no leader has reached it since it started", s.id)
	}
	if err := header(metadata.Pairs(clusterKey, *own)); err != nil {
		return err
	}
	if !slices.ContainsFunc(named, func(cluster string) bool { return cluster != *own }) {
		return nil
	}
	e := wire.Errorf(zamokpb.Code_CODE_WRONG_CLUSTER,
		"not done: %s belongs to cluster %s, and the request is meant for cluster %s", s.id, *own, strings.Join(named, ", "))
	e.Info.Cluster = *own
	return e
}
