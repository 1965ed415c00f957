package client

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

const (
	// patienceMin is how long the first attempt at a node may take, so that a node which vanished
	// without a word holds up the round no longer; further rounds are more patient.
	patienceMin = 500 * time.Millisecond
	patienceMax = 5 * time.Second
	// changeTimeout is how long a change of the members may take: a node that joins has to catch up.
	changeTimeout = time.Minute
)

// effect is what an attempt without an answer may have done.
type effect uint8

const (
	reads       effect = iota // nothing
	repeats                   // what the next attempt may do again
	changesOnce               // what must not be done again
)

// call makes a unary call at the current leader until it is answered, definitely refused, or its time is over. It reports
// whether an attempt, perhaps not the last one, may have taken effect without an answer. Once one may have, an
// error has the outcome Unknown, whatever a later attempt comes to.
func call[Q proto.Message, R any](ctx context.Context, c *Client, effect effect,
	method func(*node, context.Context, Q, ...grpc.CallOption) (R, error), request Q) (r R, inDoubt bool, err error) {
	// gRPC would report text that is not UTF-8 like a failure of the node, and other nodes would be asked.
	if _, err := proto.Marshal(request); err != nil {
		return r, false, &Error{Kind: ErrInvalid, Field: "request", cause: err}
	}
	limit, patience := c.cfg.RequestTimeout, patienceMin
	if effect == changesOnce {
		// Find the leader first: an attempt at a node that is down would be in doubt, too.
		if _, err := c.Now(ctx); err != nil {
			return r, false, err
		}
		limit, patience = changeTimeout, changeTimeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errRequestTimeout)
	defer cancel()
	outcome := NotDone
	attempt := func(one *node) (err error) {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		r, err = method(one, ctx, request)
		if effect != reads && err != nil && !notDone(err) && refusal(err, infoOf(err)) == nil {
			if outcome = Unknown; effect == changesOnce {
				return finalError{&Error{Kind: ErrUnavailable, cause: plain(err)}}
			}
		}
		return err
	}
	var between pause
	for ; ; patience = max(patience, min(2*patience, patienceMax)) {
		err := c.open()
		if err == nil {
			err = c.nodes.askInTurn(ctx, false, attempt)
		}
		switch {
		case err != errNotAnswered && outcome == Unknown:
			return r, true, withOutcome(err, Unknown)
		case err != errNotAnswered:
			return r, false, err
		case ctx.Err() != nil || !between.wait(ctx):
			return r, outcome == Unknown, c.nodes.unavailable(outcome, contextEnd(ctx))
		}
	}
}
