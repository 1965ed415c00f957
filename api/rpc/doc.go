// Package rpc is the front of a node for gRPC: it turns calls into requests for the gate, and
// nothing else.
//
//	f := rpc.New(rpc.Config{Gate: gate, Limits: limits, Logger: logger, …})
//	f.ServeClients(listener, budget, credentials)
//	f.ServeNodes(node.Relays(), budget)
//	…
//	f.Stop()
//
// An interceptor takes each call of zamok's services to the gate with what its connection and its
// metadata show of the caller. Health and reflection need no authentication. The response names the
// node's cluster as soon as the node knows it.
//
//	front.go   Front: its listeners, and the way of a call
//	health.go  grpc.health.v1
package rpc
