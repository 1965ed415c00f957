// Package call makes calls over the connections of a client, for package client/admin and for the
// command, which shows the answers as they are (package api/view).
//
//	r, inDoubt, err := call.Leader(ctx, c.Calls(), call.Repeats, call.Node.ForceRelease, request)
//
// The client finds the leader, repeats calls, has them relayed, and says what a failed call has
// changed. The caller names the call, and what an attempt at it may do.
package call
