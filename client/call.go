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

// unary is one attempt at one node.
type unary func(context.Context, grpc.ClientConnInterface) error

// ask makes a unary call that changes nothing: without an answer, nothing was done.
func (c *Client) ask(ctx context.Context, rpc unary) error {
	_, err := c.within(ctx, c.cfg.RequestTimeout, patienceMin, reads, rpc)
	return err
}

// call makes a unary call that is harmless if it happens twice. It reports whether an attempt, perhaps not the last one,
// may have taken effect without an answer.
func (c *Client) call(ctx context.Context, rpc unary) (inDoubt bool, err error) {
	return c.within(ctx, c.cfg.RequestTimeout, patienceMin, repeats, rpc)
}

// changeTimeout is how long a change of the members may take: a node that joins has to catch up.
const changeTimeout = time.Minute

// once makes a unary call that must not happen twice: when its outcome is in doubt, it is not repeated.
func (c *Client) once(ctx context.Context, rpc unary) error {
	// Find the leader first: an attempt at a node that is down would be in doubt, too.
	if _, err := c.Now(ctx); err != nil {
		return err
	}
	_, err := c.within(ctx, changeTimeout, changeTimeout, changesOnce, rpc)
	return err
}

// effect is what an attempt without an answer may have done.
type effect uint8

const (
	reads       effect = iota // nothing
	repeats                   // what the next attempt may do again
	changesOnce               // what must not be done again
)

// within makes a call at the current leader until it is answered, definitely refused, or its time is over. Once an attempt
// may have taken effect, an error has the outcome Unknown, whatever a later attempt comes to.
func (c *Client) within(ctx context.Context, limit, patience time.Duration, effect effect, rpc unary) (inDoubt bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errRequestTimeout)
	defer cancel()
	outcome := NotDone
	var between pause
	for ; ; patience = max(patience, min(2*patience, patienceMax)) {
		err, nobody := c.open(), false
		if err == nil {
			err, nobody = c.nodes.askInTurn(ctx, func(conn *grpc.ClientConn) error {
				ctx, cancel := context.WithTimeout(ctx, patience)
				defer cancel()
				err := rpc(ctx, conn)
				if effect != reads && err != nil && !notDone(err) && refusal(err, infoOf(err)) == nil {
					if outcome = Unknown; effect == changesOnce {
						return finalError{&Error{Kind: ErrUnavailable, cause: plain(err)}}
					}
				}
				return err
			})
		}
		switch {
		case !nobody && outcome == Unknown:
			return true, withOutcome(err, Unknown)
		case !nobody:
			return false, err
		case ctx.Err() != nil || !between.wait(ctx):
			return outcome == Unknown, c.nodes.unavailable(outcome, contextEnd(ctx))
		}
	}
}
