package client

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"zamok/api/zamokpb"
	"zamok/client/call"
)

const (
	// attemptTimeoutMin is the timeout of the first attempt at a node, so that a dead node does not
	// hold up the round for longer. It doubles with each round up to attemptTimeoutMax.
	attemptTimeoutMin = 500 * time.Millisecond
	attemptTimeoutMax = 5 * time.Second
	// changeTimeout is the timeout of a change of the members: a node that joins has to catch up.
	changeTimeout = time.Minute
	// unbounded is longer than any wait.
	unbounded = 1 << 62
)

// Calls is for package client/admin and for the command, which call the cluster over the
// connections of this client. It has no other use, since its types are internal.
func (c *Client) Calls() call.Client { return calls{c} }

// calls makes the calls of a client that need no session.
type calls struct{ *Client }

// Leader makes a unary call: see call.Client. If an attempt without an answer may have taken
// effect, an error has the outcome Unknown, whatever a later attempt returns.
func (c calls) Leader(ctx context.Context, effect call.Effect, request proto.Message,
	attempt func(context.Context, call.Node) (any, error)) (r any, inDoubt bool, err error) {
	// gRPC reports text that is not UTF-8 like a failure of the node, so that other nodes would be
	// tried.
	if _, err := proto.Marshal(request); err != nil {
		return r, false, &Error{Kind: ErrInvalid, Field: "request", Message: "request", cause: err}
	}
	limit, timeout := c.cfg.RequestTimeout, attemptTimeoutMin
	switch effect {
	case call.Waits:
		limit, timeout = unbounded, unbounded
	case call.ChangesOnce:
		// Find the leader first, because an attempt at a node that is down would be in doubt, too.
		_, _, err := call.Leader(ctx, c, call.Reads, call.Node.Now, &zamokpb.NowRequest{})
		if err != nil {
			return nil, false, err
		}
		limit, timeout = changeTimeout, changeTimeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errRequestTimeout)
	defer cancel()
	if effect == call.Surveys {
		if _, err := c.nodes.survey(ctx); err != nil {
			return r, false, err
		}
	}
	outcome := NotDone
	doubt := func(err error) bool {
		changesNothing := effect == call.Reads || effect == call.Surveys
		if changesNothing || err == nil || notDone(err) || permanent(err) != nil {
			return false
		}
		outcome = Unknown
		return true
	}
	begin := func(ctx context.Context, _ context.CancelCauseFunc, one *node) (any, error) {
		return attempt(ctx, one.Node)
	}
	tries := attempts[any]{begin: begin}
	try := func(one *node) error {
		e := tries.try(ctx, one, timeout)
		if r = e.value; e.err != errNoAnswer && doubt(e.err) && effect == call.ChangesOnce {
			return permanentError{&Error{Kind: ErrUnavailable, cause: plainError(e.err)}}
		}
		return e.result(one)
	}
	var retry backoff
	for err = c.tryNodes(ctx, leaderOrRelay, try); err == errRoundFailed && ctx.Err() == nil &&
		retry.wait(ctx); {
		timeout = max(timeout, min(2*timeout, attemptTimeoutMax))
		err = c.tryNodes(ctx, leaderOrRelay, try)
	}
	for _, e := range tries.end() {
		doubt(cmp.Or(e.err, errNoAnswer)) // a cancelled attempt may take effect, too
	}
	switch {
	case err == errRoundFailed:
		return r, outcome == Unknown, c.nodes.unavailable(outcome, contextEnd(ctx))
	case outcome == Unknown:
		return r, true, withOutcome(err, Unknown)
	}
	return r, false, err
}

// Stream follows a stream of the leader: see call.Client.
func (c calls) Stream(ctx context.Context, message string,
	follow func(call.Node) (begun bool, err error)) error {
	err := c.tryNodes(ctx, leaderOrRelay, func(one *node) error {
		begun, err := follow(one.Node)
		if err != nil && begun {
			return permanentError{&Error{Kind: ErrUnavailable, Message: message,
				cause: plainError(err)}}
		}
		return err
	})
	if err == errRoundFailed {
		return c.nodes.unavailable(NotDone, contextEnd(ctx))
	}
	return err
}
