package gate

import (
	"context"
	"fmt"
	"reflect"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"zamok/api/audit"
	"zamok/api/conns"
	"zamok/api/gate/limits"
	"zamok/api/gate/rules"
	"zamok/api/metrics"
	"zamok/api/service"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/raftnode/peer"
	"zamok/session"
)

// Config is what a Gate is made of.
type Config struct {
	ID       string            // of this node
	Identity Identifier        // authenticates callers
	Rules    func() *rules.Set // the access rules in force; nil: everything is allowed
	Limits   *limits.Limits
	Metrics  *metrics.Metrics
	Audit    *audit.Log
	Service  *service.Service // carries out what was let through
	Relay    Relay
	// Probe finds out soon if the computer of a caller that waits is gone.
	Probe func(*conns.Conn)
}

// Node is what a gate needs of the node behind it.
type Node interface {
	View(func(*fsm.Machine))
	Leader() (id, address string)
	Servers() []raftnode.Server
	LeaderServer() peer.Server
	HasServer(peer.Server) bool
	NoRoom() string
	ReadBarrier(context.Context) (clock.Stamp, clock.Time, error)
}

// Gate lets requests through to the service, and their responses back. It is safe for concurrent
// use.
type Gate struct {
	Config
	rows map[reflect.Type]*Request // byType
	// set by Start; before, only operators' calls beside the wire come
	node     Node
	cluster  atomic.Pointer[string]    // the id of this node's cluster; nil: not known yet
	limitMet atomic.Pointer[time.Time] // when a request was refused because of a limit; nil: never
}

// New makes a gate. Start follows once there is a node.
func New(c Config) *Gate { return &Gate{Config: c, rows: byType} }

// Start gives the gate its node. No request of the wire may come before.
func (g *Gate) Start(node Node) { g.node = node }

// Do is the way of a call: who calls, where it is carried out, what admit checks, the service, and
// what its caller may learn of the result. Of a call that this node relays, the leader's gate
// checks and hides the most.
func (g *Gate) Do(ctx context.Context, from Arrival,
	request proto.Message) (response proto.Message, err error) {
	d := g.row(request)
	if d == nil || d.call == nil {
		return nil, errNoRow(fmt.Sprintf("%T", request))
	}
	defer func() { err = outcome(from, d, err) }()
	ctx, err = g.Identify(ctx, from, d.Method)
	if err != nil {
		return nil, err
	}
	leader, err := g.route(ctx, d)
	if err != nil {
		return nil, err
	}
	admission, err := g.admit(ctx, d, Stream{}, request, leader != nil)
	if err != nil {
		if isNotOwner(err) {
			g.recordDenial(ctx, auditEvent(ctx, "", request, err))
		}
		return nil, err
	}
	defer admission.End()
	lasting, stop := g.whileAllowed(ctx, request, leader != nil)
	defer stop()
	if leader != nil {
		return g.Relay.Call(lasting, *leader, d, request)
	}
	response, err = d.call(lasting, g.Service, request)
	g.record(ctx, d, request, err)
	g.redact(ctx, d, response, err)
	return response, err
}

// Admission is a request that was let through. The zero value is none.
type Admission struct{ uncount, leave func() }

// End ends what the request counted as.
func (a Admission) End() {
	if a.leave != nil {
		a.leave()
	}
	if a.uncount != nil {
		a.uncount()
	}
}

// Stream is what a message of a stream belongs to. It is zero for other requests.
type Stream struct {
	Secret       []byte // of its session
	AckedThrough uint64 // of the message's frame
}

// session is the session of a stream; 0: it has ended, or is not applied yet.
func (in Stream) session(m *fsm.Machine) session.ID {
	living, _ := m.SessionBySecret(wire.Hash(in.Secret))
	return living.ID
}

// admitMessage lets a request of the caller of ctx through, or says why not. Nothing was done if it
// returns an error, unless the error has another outcome.
func (g *Gate) admitMessage(ctx context.Context, in Stream,
	request proto.Message) (Admission, error) {
	d := g.row(request)
	if d == nil {
		return Admission{}, errNoRow(fmt.Sprintf("%T", request))
	}
	return g.admit(ctx, d, in, request, false)
}

// row is that of a request, also for the functions in the table themselves; nil: there is none.
func (g *Gate) row(request proto.Message) *Request { return g.rows[reflect.TypeOf(request)] }

func errNoRow(request string) error {
	return wire.Errorf(zamokpb.Code_CODE_INTERNAL, "not done: this node has no rule for %s",
		request)
}

// admit is all that happens to a request before the service, in this order. The limits of the
// caller come first: they are cheap, and what a flood meets. A connection counts as used from its
// first admitted call on, so its place comes behind the rules. Room is checked last, because that
// may read the state.
//
// What comes behind it is the queue in front of the log, which is fair to callers (raftnode/fair).
// A stream that sends more than the queue takes is slowed down before its messages come here
// (package service, Overload).
func (g *Gate) admit(ctx context.Context, d *Request, in Stream, request proto.Message,
	relayed bool) (a Admission, err error) {
	defer func() {
		if err != nil {
			a.End()
			a = Admission{}
		}
	}()
	caller := CallerOf(ctx)
	if a.uncount, err = g.limit(caller, d, in, request, relayed); err != nil {
		return a, err
	}
	if !relayed { // else the leader does this
		if err = g.validate(d, request); err != nil {
			return a, err
		}
		if err = g.authorize(ctx, d, in, request); err != nil {
			return a, err
		}
		if err = g.own(ctx, caller, d, request); err != nil {
			return a, err
		}
	}
	if a.leave, err = g.occupy(ctx, caller, d, request); err != nil || relayed {
		return a, err
	}
	return a, g.checkRoom(ctx, caller, d, in, request)
}
