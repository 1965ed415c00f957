package client

import (
	"context"
	"time"

	"google.golang.org/grpc"
)

const (
	// patienceMin is how long the first attempt at a node may take, so that a node which vanished
	// without a word holds up the round no longer; further rounds are more patient.
	patienceMin = 500 * time.Millisecond
	patienceMax = 5 * time.Second
)

// call makes a unary call at the current leader until it is answered, definitely refused, or times out. It must be
// harmless if it happens twice.
func (c *Client) call(ctx context.Context, rpc unary) error {
	return c.within(ctx, c.cfg.RequestTimeout, patienceMin, Unknown, rpc)
}

// ask is call for what changes nothing: without an answer, nothing was done.
func (c *Client) ask(ctx context.Context, rpc unary) error {
	return c.within(ctx, c.cfg.RequestTimeout, patienceMin, NotDone, rpc)
}

// unary is one attempt at one node.
type unary func(context.Context, grpc.ClientConnInterface) error

// changeTimeout is how long a change of the members may take: a node that joins has to catch up.
const changeTimeout = time.Minute

// once is call for what must not happen twice: when its outcome is in doubt, it is not repeated.
func (c *Client) once(ctx context.Context, rpc unary) error {
	// Find the leader first: an attempt at a node that is down would be in doubt, too.
	if _, err := c.Now(ctx); err != nil {
		return err
	}
	return c.within(ctx, changeTimeout, changeTimeout, Unknown, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		err := rpc(ctx, conn)
		if info := infoOf(err); err == nil || notDone(err) || definite(info) != nil {
			return err
		}
		return finalError{&Error{Kind: ErrUnavailable, Outcome: Unknown, cause: plain(err)}}
	})
}

// within makes a call within a time. Unanswered is its outcome without an answer.
func (c *Client) within(ctx context.Context, limit, patience time.Duration, unanswered Outcome, rpc unary) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errRequestTimeout)
	defer cancel()
	var between pause
	for ; ; patience = max(patience, min(2*patience, patienceMax)) {
		if err := c.open(); err != nil {
			return err
		}
		err, nobody := c.nodes.askInTurn(ctx, func(conn *grpc.ClientConn) error {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			return rpc(ctx, conn)
		})
		if !nobody {
			return err
		}
		if ctx.Err() != nil || !between.wait(ctx) {
			return c.nodes.unavailable(unanswered, contextEnd(ctx))
		}
	}
}
