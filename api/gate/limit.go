package gate

import (
	"context"

	"google.golang.org/protobuf/proto"

	"zamok/api/gate/limits"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/fsm"
)

// limit counts a request of a caller until end is called, which may be nil. It never refuses an
// essential request, nor a retransmission of what the state machine has.
//
// A relayed call counts at the leader as well, for the same caller. What may be a retransmission
// counts only there, unless it lasts: only the leader surely has what was requested.
func (g *Gate) limit(c Caller, d *Request, in Stream, request proto.Message,
	relayed bool) (end func(), err error) {
	who := c.Principal()
	switch {
	case relayed && d.Lasts:
		return g.Limits.Open(limits.Relays, who)
	case relayed && d.known != nil:
		return nil, nil
	case d.isEssential(request):
		return g.Limits.Count(d.Counts, who), nil
	}
	known := func() (known bool) {
		if d.known != nil {
			g.node.View(func(m *fsm.Machine) { known = d.known(m, c, in, request) })
		}
		return known
	}
	if d.Counts == limits.Streams && known() { // it takes the place of the earlier stream
		return g.Limits.Count(d.Counts, who), nil
	}
	if end, err = g.Limits.Open(d.Counts, who); err != nil {
		if known() { // it would wait beside the earlier call
			e := wire.Explain(err)
			e.Info.Code, e.Info.Outcome = zamokpb.Code_CODE_OVERLOADED,
				zamokpb.Outcome_OUTCOME_UNKNOWN
			e.Info.Message = "the earlier request stays in effect, but this call cannot wait " +
				"for it: " + e.Info.Message
		}
		return nil, err
	}
	if err = g.Limits.Take(limits.Requests, who); err != nil && known() {
		return end, nil
	}
	return end, err
}

// occupy counts an admitted call on its connection until leave is called, which may be nil. An
// essential call needs no room there, unless it lasts. A message of a stream has the place of the
// stream.
func (g *Gate) occupy(ctx context.Context, c Caller, d *Request,
	request proto.Message) (leave func(), err error) {
	if d.Method == "" {
		return nil, nil
	}
	conn := arrivalOf(ctx).Conn
	if conn == nil {
		return nil, nil
	}
	if d.Counts == limits.HeldCalls {
		g.Probe(conn)
	}
	leave, limit := conn.Admitted(c.Via != nil || c.IsAuthenticated(),
		func() bool { return g.mayOperate(c) })
	if limit == "" || !d.Lasts && d.isEssential(request) {
		return leave, nil
	}
	e := wire.Errorf(zamokpb.Code_CODE_OVERLOADED,
		"not done: the limit %s of this node is reached, and no other connection gives way; use "+
			"another node", limit)
	e.Info.Field = limit
	return nil, e
}
