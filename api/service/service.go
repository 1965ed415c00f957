package service

import (
	"context"
	"sync"
	"time"

	"zamok/api/history"
	"zamok/api/metrics"
	"zamok/api/push"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/session"
)

// Config is what a Service is made of.
type Config struct {
	ID       string // of this node
	Hub      *push.Hub
	History  *history.History
	Metrics  *metrics.Metrics
	Stopping <-chan struct{} // closed when the node stops: whatever waits in the service ends
	// Answered counts a command that arrived then, and has its answer now; nil: it was done.
	Answered func(ctx context.Context, arrived time.Time, refusal *wire.Error)
}

// Service carries out the requests of the wire on one node. It is safe for concurrent use.
type Service struct {
	Config
	node *raftnode.Node // set by Start

	// held to submit the drop of a call that broke; taken by a call that begins to wait
	dropping  sync.Mutex
	reading   chan struct{}  // capacity 1: full while a call reads much of the state
	readSlots readSlots      // of callers and their connections, for reading
	backingUp chan struct{}  // its capacity is how many there may be
	busy      sync.WaitGroup // the hub, the history, and the goroutines of streams
}

// New makes a service, and Start gives it its node. No request may come before.
func New(c Config) *Service {
	return &Service{
		Config: c, reading: make(chan struct{}, 1),
		readSlots: readSlots{of: make(map[reader]*readSlot)},
		backingUp: make(chan struct{}, backupsMax),
	}
}

// Start gives the service its node, and begins to deliver events.
func (s *Service) Start(node *raftnode.Node) {
	s.node = node
	s.Hub.Start(node)
	s.busy.Go(func() { s.Hub.Run(s.Stopping) })
	s.busy.Go(func() { s.History.Run(s.Stopping) })
}

// Wait waits until nothing of the service runs any more, after Stopping was closed and the fronts
// have ended their calls.
func (s *Service) Wait() { s.busy.Wait() }

// Caller is what the service knows of who sends a request. The gate has authenticated it, and knows
// the access rules.
type Caller interface {
	// Identity is what a session is opened with.
	Identity() string
	// Owns reports whether the caller may use a session that was opened with an identity, if it
	// knows the secret.
	Owns(identity string) bool
	// MayLock reports whether the caller may hold sessions. One that may not can release.
	MayLock() bool

	// Locks and Sessions return functions that add what the caller may see to a page, in parts. See
	// Service.readInParts.
	Locks(prefix, after string, limit int,
		page *[]fsm.LockSummary) (part func(*fsm.Machine) (more bool))
	Sessions(after session.ID, limit int,
		page *[]session.Session) (part func(*fsm.Machine) (more bool))
	// Watches returns a function that reports whether the caller may get events of a lock, and with
	// "" whether it may get the ends of sessions; and the rules by which it decides.
	Watches() (inForce any, may func(name string) bool)
	// Key is the same for callers that may see the same, whatever the rules are.
	Key() string

	// Principal is the name under which the caller is served in turn with others, Connection what
	// it calls on; nil: none that is known.
	Principal() string
	Connection() any
	// Probe finds out soon if the caller's computer is gone.
	Probe()
	// HungUp reports, of a call that broke, whether the caller itself did that, on a connection to
	// this node.
	HungUp() bool
	// RelayRemoved says that the node that relays the call was removed; "": it was not.
	RelayRemoved() string
}

type callerKey struct{}

// NewContext returns a context with the caller of a request.
func NewContext(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf returns the caller of a request; nil: there is none.
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

// nameLeader adds the leader to an error, unless it is this node.
func (s *Service) nameLeader(e *wire.Error) {
	if id, address := s.node.Leader(); id != s.ID {
		e.Info.Leader, e.Info.LeaderAddress = id, address
	}
}

func (s *Service) isStopping() bool { return isClosed(s.Stopping) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func errStopping() error {
	return wire.StreamEnded(zamokpb.Code_CODE_STOPPING, "this node is stopping")
}
