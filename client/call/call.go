package call

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"zamok/api/zamokpb"
)

// Effect is what an attempt without an answer may have done, and so whether the call may be
// repeated.
type Effect uint8

const (
	Reads       Effect = iota // nothing
	Surveys                   // nothing; first every endpoint is called, to compare their clusters
	Repeats                   // something that the next attempt may repeat
	Waits                     // the same; the answer may take as long as the caller's context
	ChangesOnce               // something that must not be repeated
)

// Node has the calls of one node.
type Node struct {
	zamokpb.ZamokClient
	zamokpb.AdminClient
}

// At returns the calls of the node at a connection.
func At(conn grpc.ClientConnInterface) Node {
	return Node{zamokpb.NewZamokClient(conn), zamokpb.NewAdminClient(conn)}
}

// Client makes calls. Package client implements it.
type Client interface {
	// Leader calls attempt for the leader until it succeeds, fails with a permanent error, or its
	// time has passed. inDoubt reports whether an attempt without an answer may have taken effect,
	// perhaps not the last one.
	Leader(ctx context.Context, effect Effect, request proto.Message,
		attempt func(context.Context, Node) (any, error)) (answer any, inDoubt bool, err error)
	// Stream calls follow for one node after the other, the leader first, until it succeeds. Once a
	// stream has begun, its error is final, with a message.
	Stream(ctx context.Context, message string, follow func(Node) (begun bool, err error)) error
}

// Leader makes a unary call at the leader: see Client.Leader.
func Leader[Q proto.Message, R any](ctx context.Context, c Client, effect Effect,
	method func(Node, context.Context, Q, ...grpc.CallOption) (R, error), request Q,
) (r R, inDoubt bool, err error) {
	attempt := func(ctx context.Context, one Node) (any, error) { return method(one, ctx, request) }
	answer, inDoubt, err := c.Leader(ctx, effect, request, attempt)
	r, _ = answer.(R) // without an answer it is nil
	return r, inDoubt, err
}

// listMax is how many sessions a node lists at once.
const listMax = 1000

// Sessions lists living sessions with ids above after, in order: at most limit, or 1000 if that is
// 0. It makes several calls if needed, since answers are short if sessions have much metadata. The
// stamp is that of the first.
func Sessions(ctx context.Context, c Client, after uint64, limit int) (
	list []*zamokpb.SessionInfo, at *zamokpb.Stamp, err error) {
	if limit <= 0 {
		limit = listMax
	}
	for len(list) < limit {
		page := &zamokpb.ListSessionsRequest{After: after,
			Limit: uint32(min(limit-len(list), listMax))}
		r, _, err := Leader(ctx, c, Reads, Node.ListSessions, page)
		if err != nil {
			return nil, nil, err
		}
		if at == nil {
			at = r.GetStamp()
		}
		if len(r.GetSessions()) == 0 {
			break
		}
		list = append(list, r.GetSessions()...)
		after = list[len(list)-1].GetSession()
	}
	return list, at, nil
}
