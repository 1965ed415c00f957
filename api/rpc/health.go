package rpc

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"zamok/api/zamokpb"
)

// health answers grpc.health.v1: a node serves while it is ready, as /readyz says.
type health struct {
	healthpb.UnimplementedHealthServer
	notReady func() string
	stopping <-chan struct{}
}

// healthEvery is how often Watch compares the status.
const healthEvery = time.Second

// services are those whose health may be queried; "" is the node.
var services = []string{"", zamokpb.Zamok_ServiceDesc.ServiceName,
	zamokpb.Admin_ServiceDesc.ServiceName}

func (h health) status(service string) healthpb.HealthCheckResponse_ServingStatus {
	if !slices.Contains(services, service) {
		return healthpb.HealthCheckResponse_SERVICE_UNKNOWN
	}
	if h.notReady() != "" {
		return healthpb.HealthCheckResponse_NOT_SERVING
	}
	return healthpb.HealthCheckResponse_SERVING
}

func (h health) Check(_ context.Context,
	req *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	now := h.status(req.Service)
	if now == healthpb.HealthCheckResponse_SERVICE_UNKNOWN {
		return nil, status.Errorf(codes.NotFound, "there is no service %q here", req.Service)
	}
	return &healthpb.HealthCheckResponse{Status: now}, nil
}

func (h health) List(context.Context,
	*healthpb.HealthListRequest) (*healthpb.HealthListResponse, error) {
	all := make(map[string]*healthpb.HealthCheckResponse)
	for _, service := range services {
		all[service] = &healthpb.HealthCheckResponse{Status: h.status(service)}
	}
	return &healthpb.HealthListResponse{Statuses: all}, nil
}

func (h health) Watch(req *healthpb.HealthCheckRequest,
	stream grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	tick := time.NewTicker(healthEvery)
	defer tick.Stop()
	sent := healthpb.HealthCheckResponse_UNKNOWN
	for {
		if now := h.status(req.Service); now != sent {
			if err := stream.Send(&healthpb.HealthCheckResponse{Status: now}); err != nil {
				return err
			}
			sent = now
		}
		select {
		case <-tick.C:
		case <-stream.Context().Done():
			return context.Cause(stream.Context())
		case <-h.stopping:
			return nil
		}
	}
}
