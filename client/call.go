package client

import (
	"context"
	"time"

	"google.golang.org/grpc"
)

const (
	// patienceLeast is how long the first attempt at a node may take, so that a node which vanished
	// without a word holds up the round no longer; further rounds are more patient.
	patienceLeast = 500 * time.Millisecond
	patienceMost  = 5 * time.Second
)

// call makes a unary call at the leader, whoever that is, until it is answered, definitely refused, or the
// time is over. It must be harmless if it happens twice.
func (c *Client) call(ctx context.Context, rpc func(context.Context, grpc.ClientConnInterface) error) error {
	return c.callFor(ctx, patienceLeast, rpc)
}

// callFor is call with an own patience for the first round.
func (c *Client) callFor(ctx context.Context, patience time.Duration, rpc func(context.Context, grpc.ClientConnInterface) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.RequestTimeout, errRequestTimeout)
	defer cancel()
	var between pause
	for ; ; patience = max(patience, min(2*patience, patienceMost)) {
		if err := c.open(); err != nil {
			return err
		}
		err, nobody := c.nodes.round(ctx, func(conn *grpc.ClientConn) error {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			return rpc(ctx, conn)
		})
		if !nobody {
			return err
		}
		if ctx.Err() != nil || !between.wait(ctx) {
			return c.nodes.unavailable(Unknown, ended(ctx))
		}
	}
}

// once is call for what must not happen twice: when its outcome is in doubt, it is not repeated. It may take
// all the time that there is: an attempt that was given up would be in doubt.
func (c *Client) once(ctx context.Context, rpc func(context.Context, grpc.ClientConnInterface) error) error {
	return c.callFor(ctx, c.cfg.RequestTimeout, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		err := rpc(ctx, conn)
		if err == nil || notDone(err) {
			return err
		}
		return finalError{&Error{Kind: ErrUnavailable, Outcome: Unknown, cause: plain(err)}}
	})
}
