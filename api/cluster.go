package api

import (
	"context"
	"encoding/hex"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"zamok/api/zamokpb"
	"zamok/fsm"
)

// clusterKey is the metadata in which a request names the cluster that it is meant for, and every answer the
// cluster that it comes from.
const clusterKey = "zamok-cluster"

// noteCluster keeps the id of this node's cluster for its answers, once the machine has it. A machine that
// starts over, because raft was closed and opened, does not have it for a while: the cluster is the same. The
// caller has the machine's lock.
func (s *Server) noteCluster(m *fsm.Machine) {
	id := m.Cluster()
	if id == s.clusterID || id == (fsm.ClusterID{}) {
		return
	}
	s.clusterID = id
	text := hex.EncodeToString(id[:])
	s.cluster.Store(&text)
}

// checkCluster refuses a request that names another cluster than this node's. Nothing else has looked at it then: not
// the relay, which would pass it on, and no handler.
func (s *Server) checkCluster(ctx context.Context, method string, header func(metadata.MD) error) error {
	if !strings.HasPrefix(method, "/zamok.v1.") {
		return nil // grpc.health.v1 is about this node alone
	}
	own, named := s.cluster.Load(), metadata.ValueFromIncomingContext(ctx, clusterKey)
	if own == nil {
		if len(named) == 0 {
			return nil
		}
		return fail(zamokpb.Code_CODE_NOT_LEADER,
			"not done: %s does not know yet which cluster it belongs to: no leader has reached it since it started", s.id)
	}
	if err := header(metadata.Pairs(clusterKey, *own)); err != nil {
		return err
	}
	if !slices.ContainsFunc(named, func(cluster string) bool { return cluster != *own }) {
		return nil
	}
	f := fail(zamokpb.Code_CODE_WRONG_CLUSTER,
		"not done: %s belongs to cluster %s, and the request is meant for cluster %s", s.id, *own, strings.Join(named, ", "))
	f.info.Cluster = *own
	return f
}

func (s *Server) checkClusterUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if err := s.checkCluster(ctx, info.FullMethod, func(md metadata.MD) error { return grpc.SetHeader(ctx, md) }); err != nil {
		return nil, err
	}
	return handle(ctx, req)
}

func (s *Server) checkClusterStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if err := s.checkCluster(stream.Context(), info.FullMethod, stream.SetHeader); err != nil {
		return err
	}
	return handle(srv, stream)
}
