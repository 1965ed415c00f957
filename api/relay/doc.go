// Package relay passes calls on to the node that leads, for clients that reach another node.
//
//	r := relay.New(relay.Config{Limits: limits, Cluster: gate.Cluster, Stopping: stopping})
//	r.Start(node) // before the first call
//
//	response, err := r.Call(ctx, leader, row, request)
//	err = r.Stream(ctx, leader, row, messages)
//
// A call travels over a connection between nodes, whose handshake has authenticated both. So the
// leader takes the caller as this node has authenticated it. Responses and frames pass through
// without being decoded.
//
// What waits for the leader is bounded in bytes, for each caller and for all (bytes.go). Calls that
// may be held open leave room for those that may not. An error of the leader is passed on; what
// gRPC answers in its place leaves the outcome unknown, once something was sent.
package relay
