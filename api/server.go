package api

import (
	"net"
	"sync"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"zamok/api/audit"
	"zamok/api/conns"
	"zamok/api/gate"
	"zamok/api/gate/limits"
	"zamok/api/history"
	"zamok/api/metrics"
	"zamok/api/push"
	"zamok/api/relay"
	"zamok/api/rpc"
	"zamok/api/service"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
)

const (
	// UnreadBytesDefault is the default of NodeConfig.UnreadBytesMax.
	UnreadBytesDefault = 64 << 20
	// relayedBudgets is how many times UnreadBytesMax the connections of other nodes have: once for
	// each node of the largest usual cluster, which keeps its own clients within UnreadBytesMax.
	relayedBudgets = 4
	// ConnsDefault is the default of NodeConfig.ConnsMax.
	ConnsDefault = conns.MaxDefault
)

// server composes what serves clients on one node: fronts, gate and service, and what they have in
// common.
type server struct {
	cfg     *NodeConfig
	node    *raftnode.Node // set by serve
	gate    *gate.Gate
	service *service.Service
	relay   *relay.Relay
	grpc    *rpc.Front
	hub     *push.Hub
	history *history.History
	metrics *metrics.Metrics
	limits  *limits.Limits
	audit   *audit.Log
	grants  *grantLog     // nil: grants are not audited
	budget  *conns.Budget // for unread answers and incomplete requests of clients

	beginning sync.Mutex     // held to begin a call without a network, and to stop
	calls     sync.WaitGroup // calls without a network
	stopping  chan struct{}  // closed when the node stops: whatever waits here ends
}

// newServer makes what receives the events of the state machine. serve follows once there is a
// node.
func newServer(cfg *NodeConfig) *server {
	s := &server{cfg: cfg, history: history.New(), metrics: metrics.New(),
		stopping: make(chan struct{})}
	s.limits = limits.New(limits.Config{
		Set: cfg.Limits, Connections: cfg.ConnsMax, Logger: cfg.Logger,
		LimitReached: s.metrics.LimitReached, Clock: clock.System(),
	})
	s.budget = conns.NewBudget(cfg.UnreadBytesMax, s.countRefusal)
	s.hub = push.NewHub(s.metrics)
	s.audit = audit.New(audit.Config{
		Out: cfg.Audit, Node: cfg.ID, Failed: unaudited(s.metrics, cfg.Logger),
		Allow: s.limits.AllowDenialLine, Omitted: s.metrics.Omitted,
	})
	s.gate = gate.New(gate.Config{
		ID: cfg.ID, Identity: cfg.Identity, Rules: cfg.Rules, Limits: s.limits, Metrics: s.metrics,
		Audit: s.audit,
		Probe: func(conn *conns.Conn) { conn.Probe(conns.Probes(conns.WaitingProbes)) },
	})
	s.service = service.New(service.Config{
		ID: cfg.ID, Hub: s.hub, History: s.history, Metrics: s.metrics, Stopping: s.stopping,
		Answered: s.gate.Answered,
	})
	s.relay = relay.New(relay.Config{Limits: s.limits, Cluster: s.gate.Cluster,
		Stopping: s.stopping})
	s.gate.Service, s.gate.Relay = s.service, s.relay
	s.grpc = rpc.New(rpc.Config{
		Gate: s.gate, Limits: s.limits, Logger: cfg.Logger, Stopping: s.stopping,
		NotReady: func() string { return s.notReady(s.node) },
	})
	if cfg.AuditGrants {
		s.grants = newGrantLog(s.audit)
	}
	return s
}

// applied passes on what an entry did, under the state machine's lock.
func (s *server) applied(m *fsm.Machine, a fsm.Applied) {
	if s.cfg.Applied != nil {
		s.cfg.Applied(m, a)
	}
	s.hub.Applied(m, a)
	s.history.Applied(a)
	s.metrics.Applied(a)
	s.grants.Applied(m, a)
	s.gate.LearnCluster(m)
}

func (s *server) restored(m *fsm.Machine) {
	if s.cfg.Restored != nil {
		s.cfg.Restored(m)
	}
	s.hub.Restored(m)
	s.history.Restored(m)
	s.gate.LearnCluster(m)
}

// serve gives the server its node, and begins to answer clients.
func (s *server) serve(node *raftnode.Node) {
	s.node = node
	s.gate.Start(node)
	s.relay.Start(node)
	s.service.Start(node)
	toClients := insecure.NewCredentials()
	if s.cfg.ClientTLS != nil {
		toClients = credentials.NewTLS(s.cfg.clientTLS("h2", s.cfg.tokens))
	}
	ofRelays := conns.NewBudget(relayedBudgets*s.cfg.UnreadBytesMax, s.countRefusal)
	s.grpc.ServeClients(s.clientListener(s.cfg.Listener), s.budget, toClients)
	s.grpc.ServeNodes(ofRelays.Listen(node.Relays(), relay.ConnsMax, nil), ofRelays)
	s.cfg.Logger.Info("serving clients", "id", s.cfg.ID, "address", s.cfg.Client)
}

// begin counts a call without a network until end is called, unless the node is stopping.
func (s *server) begin() (end func(), err error) {
	s.beginning.Lock()
	defer s.beginning.Unlock()
	if isClosed(s.stopping) {
		return nil, wire.StreamEnded(zamokpb.Code_CODE_STOPPING, "this node is stopping")
	}
	s.calls.Add(1)
	return s.calls.Done, nil
}

// announceStop ends every wait in this server, and the calls that it relays.
func (s *server) announceStop() {
	s.beginning.Lock()
	defer s.beginning.Unlock()
	if !isClosed(s.stopping) {
		close(s.stopping)
	}
	s.relay.Close()
}

// stop lets calls end by themselves, and ends the rest soon.
func (s *server) stop() {
	s.announceStop() // the clients of relayed calls use another node
	s.grpc.Stop()
	s.kill()
}

// kill ends every call at once, and waits for what it started.
func (s *server) kill() {
	s.announceStop()
	s.grpc.Kill()
	s.hub.SetLeading(false)
	s.calls.Wait()
	s.relay.Wait()
	s.service.Wait()
}

// countRefusal counts a connection that was closed because of a limit.
func (s *server) countRefusal(limit string, from net.Addr) {
	s.limits.CountRefusal(limit, limits.Network(limits.HostOf(from.String())))
}

// clientListener returns a listener with the limits of client connections.
func (s *server) clientListener(l net.Listener) net.Listener {
	return s.budget.Listen(l, s.cfg.ConnsMax, s.limits)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
