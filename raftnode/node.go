package raftnode

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
	"zamok/session"
)

// base is what all parts of a node have in common: its settings, its name, its disk and its
// connections. Nothing of it changes after Open.
type base struct {
	cfg            Config
	log            *slog.Logger
	rateLimitedLog *peer.RateLimitedLog // for what other nodes cause
	self           peer.Server          // what raft calls this node
	store          *store.Store
	network        *peer.Network
	life           context.Context // until Close or Kill
	endLife        context.CancelFunc
}

// Node is one node of a cluster. Its methods may be called from any goroutine. It composes parts,
// each with one subject, and has their life cycle, the maintenance loop and what other nodes
// request.
type Node struct {
	*base
	state     state
	proposer  proposer
	runs      raftRuns
	timing    timing
	handover  handover
	writes    writes
	progress  progress
	room      room
	watchdog  watchdog
	announcer announcer
	shortTTLs shortTTLs
	roster    roster
	changes   changes
	admission admission
	tailDebt  tailDebt

	maintainWake chan struct{} // capacity 1
	closeOnce    sync.Once
	closed       error
	busy         sync.WaitGroup // what Close waits for; see untilClose
	ending       sync.Mutex     // held while life ends, and while busy grows after Open
}

// compose makes a node of its parts. Its base gets a store and a network later.
func compose(cfg Config) *Node {
	b := &base{cfg: cfg, log: cfg.Logger, rateLimitedLog: peer.NewRateLimitedLog(cfg.Logger)}
	b.life, b.endLife = context.WithCancel(context.Background())
	n := &Node{base: b, maintainWake: make(chan struct{}, 1)}
	n.state.base, n.state.proposals, n.state.wake = b, &n.proposer.proposals, n.wakeMaintenance
	n.proposer.base, n.proposer.state, n.proposer.notLeader = b, &n.state, n.notLeader
	n.proposer.queue = newQueue()
	n.proposer.proposals.byBytes, n.proposer.proposals.fatal = make(map[*byte]*proposal), b.fatal
	n.timing.base, n.writes.base = b, b
	n.announcer = announcer{b, &n.state, &n.timing, &n.proposer}
	n.handover = handover{b, &n.state, &n.timing, &n.proposer, &n.announcer, &n.runs}
	n.watchdog = watchdog{b, &n.state, &n.proposer, &n.runs}
	n.runs = raftRuns{
		base: b, state: &n.state, timing: &n.timing, proposer: &n.proposer,
		restartedByWatchdog: n.watchdog.restarted, restarting: make(chan struct{}, 1),
	}
	n.roster.base, n.roster.state, n.roster.runs = b, &n.state, &n.runs
	n.admission = admission{b, &n.roster, &n.runs}
	n.tailDebt = tailDebt{
		base: b, timing: &n.timing, runs: &n.runs, roster: &n.roster, wake: make(chan struct{}, 1),
	}
	n.changes = changes{
		base: b, state: &n.state, proposer: &n.proposer, runs: &n.runs, handover: &n.handover,
		untilClose: n.untilClose, slot: make(chan struct{}, 1),
	}
	n.progress = progress{
		base: b, state: &n.state, proposer: &n.proposer, runs: &n.runs, handover: &n.handover,
		writes: &n.writes, changing: n.changes.slot,
	}
	n.room = room{base: b, runs: &n.runs, handover: &n.handover, progress: &n.progress}
	return n
}

// Open opens a node. With an empty directory and a list of initial members it asks the other nodes
// of the list, and waits until all of them agree to bootstrap, or ctx ends.
func Open(ctx context.Context, cfg Config) (_ *Node, err error) {
	cfg, err = cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	n := compose(cfg)
	n.state.committed.Store(&configuration{})
	n.state.replace(fsm.NewWithVersions(cfg.Versions))
	undo := cfg.Peers.Listener.Close
	defer func() { // also when Fatal ends this goroutine
		if undo != nil {
			err = errors.Join(err, undo())
		}
	}()
	if err := n.openStore(cfg.Store); err != nil {
		return nil, err
	}
	undo = func() error { return errors.Join(cfg.Peers.Listener.Close(), n.store.Close()) }
	logs := n.store.Logs()
	n.proposer.proposals.LogStore, n.proposer.proposals.MonotonicLogStore = logs,
		logs.(raft.MonotonicLogStore)
	n.timing.begin()
	identity := n.store.Identity()
	cluster := identity.Cluster
	if !n.store.HoldsData() {
		cluster = store.ID{} // the cluster that it once waited for may be another one
	}
	n.self = peer.Server{Name: cfg.ID, Incarnation: peer.Incarnation(identity.Incarnation)}
	if _, err := peer.ParseInitialMembers(identity.Initial); err != nil {
		return nil, fmt.Errorf("raftnode: %w: identity.json of %s: %w; nothing was changed; "+
			"start the release that wrote it", store.ErrLost, cfg.ID, err)
	}
	if err := n.roster.read(logs, n.store.Snapshots()); err != nil {
		return nil, err
	}
	peers := &cfg.Peers
	peers.Format = fsm.Format()
	peers.ID, peers.Incarnation, peers.Cluster, peers.Logger = cfg.ID, n.self.Incarnation,
		peer.ClusterID(cluster), cfg.Logger
	peers.Knows, peers.Condition, peers.Term, peers.Handle = n.roster.knows, n.roster.condition,
		n.store.Term, n.handleRequest
	peers.WaitWritten, peers.HeartbeatStatus, peers.MayCampaign = n.store.WaitWritten,
		n.progress.heartbeatStatus, n.progress.mayCampaign
	peers.Tail, peers.Owe = n.store.Tail, n.tailDebt.makeOwe
	n.network, err = peer.New(cfg.Peers)
	if err != nil {
		return nil, configError(err)
	}
	undo = func() error { return errors.Join(n.network.Close(), n.store.Close()) }
	if err := n.admission.prepare(ctx); err != nil {
		return nil, err
	}
	if err := n.runs.start(); err != nil {
		return nil, err
	}
	undo = nil
	n.busy.Go(n.maintain)
	n.busy.Go(n.tailDebt.regain)
	n.busy.Go(n.watchdog.watch)
	n.busy.Go(n.progress.watch)
	n.busy.Go(n.timing.measurePauses)
	return n, nil
}

// openStore opens this node's data, and measures its writes.
func (n *Node) openStore(cfg store.Config) (err error) {
	cfg.Format, cfg.NodeID, cfg.Fatal = fsm.Format(), n.cfg.ID, n.cfg.Fatal
	cfg.Postpone, cfg.Written = n.runs.mayPostpone, n.proposer.proposals.written
	observe := cfg.Observe
	cfg.Observe = func(took time.Duration) {
		n.writes.add(took)
		if observe != nil {
			observe(took)
		}
	}
	n.store, err = store.Open(cfg)
	return configError(err)
}

// fatal ends the process. If Config.Fatal returns, it ends this goroutine.
func (b *base) fatal(err error) {
	b.log.Error("fatal: this process must exit", "error", err)
	b.cfg.Fatal(err)
	runtime.Goexit()
}

// Submit proposes a command, which counts for the identity in ctx (From). done is called once,
// perhaps before Submit returns. The end of ctx does not cancel the command.
func (n *Node) Submit(ctx context.Context, c fsm.Command, done Done) {
	n.proposer.submit(ctx, c, done)
}

// Propose is Submit that waits for the answer. If ctx ends first the outcome is unknown.
func (n *Node) Propose(ctx context.Context, c fsm.Command) (Answer, error) {
	return n.proposer.propose(ctx, c)
}

// Renew proposes the renewal of a session. The answer's code is OK or NoSession.
func (n *Node) Renew(id session.ID, done Done) { n.proposer.renew(id, done) }

// Crowded reports whether more commands wait than the next entry of the log can take.
func (n *Node) Crowded() bool { return n.proposer.queue.crowded() }

// ReadBarrier returns when everything that was acknowledged anywhere before the call is in this
// node's state machine (N5), with the state machine's stamp and time.
func (n *Node) ReadBarrier(ctx context.Context) (clock.Stamp, clock.Time, error) {
	return n.proposer.readBarrier(ctx)
}

// notLeader is the error of a node that does not lead; it names the leader.
func (n *Node) notLeader() error {
	if n.life.Err() != nil {
		return ErrClosed
	}
	id, client := n.Leader()
	if id == n.cfg.ID {
		id, client = "", "" // its epoch is not open, yet or any more
	}
	return &NotLeaderError{ID: id, Client: client}
}

// Leader returns the leader, as far as this node knows, and its client address.
func (n *Node) Leader() (id, client string) {
	id = peer.NameOf(n.runs.latest.Load().leader())
	return id, n.state.member(id).Client
}

// View lets f read this node's state machine, which may be behind the leader's; after ReadBarrier
// it is not. f must not keep it, nor call this node.
func (n *Node) View(f func(*fsm.Machine)) { n.state.view(f) }

// Freeze returns this node's current state, in the time that a snapshot takes to begin. After
// ReadBarrier it has all that was acknowledged before. It may be written while the node continues.
func (n *Node) Freeze() *fsm.Frozen { return n.state.freeze() }

// Join adds a node to the cluster: first without a vote, then, once it has nearly caught up, with
// one. A node with another data directory replaces a server of the same name and address that has
// been silent for replaceSilence. Only the leader can join nodes. Each step is in the log. So if
// ctx or the leadership ends in between, the next Join continues from there.
func (n *Node) Join(ctx context.Context, node peer.Node) error {
	return n.changes.join(ctx, node, peer.Server{})
}

// Remove removes a node from the cluster. A removal after which no majority of the voters would
// answer is refused: it could not be committed, and the cluster would have no leader from then on.
// A leader that is to remove itself hands over instead, and its NotLeaderError names the node that
// can do it: its removal would cost the others an election.
func (n *Node) Remove(ctx context.Context, name string) error {
	return n.changes.removeNamed(ctx, name)
}

// RequestJoin requests once, of the members of Config.Join and of those that this node knows of, to
// be added. It returns nil when the leader has given this node a vote. After ErrRefused every
// further attempt would fail. After any other error one may succeed: when the members can be
// reached, this node has caught up, or an operator allows it.
func (n *Node) RequestJoin(ctx context.Context) error { return n.admission.requestAll(ctx) }

// Transfer transfers the leadership to a node, fit or not, or with "" to one that is fit for it.
func (n *Node) Transfer(ctx context.Context, name string) error {
	return n.handover.order(ctx, name)
}

// NoRoom is why this leader admits nothing new, as of the last second; "" = it does, or does not
// lead.
func (n *Node) NoRoom() string { return n.room.reason() }

// Timeout is the T of a majority of the voters, as they announced it, or this node's if that is
// longer. A failover takes two to four times as long.
func (n *Node) Timeout() time.Duration { return time.Duration(n.timing.ofMajority.Load()) }

// LeastTTL is a ttl below which most failovers end a session now.
func (n *Node) LeastTTL() clock.Span { return leastTTL(n.Timeout()) }

// ShortTTLs is how many sessions have a shorter one, as of the last second.
func (n *Node) ShortTTLs() int { return n.shortTTLs.count(&n.state, n.LeastTTL()) }

// Status is how a node is doing.
type Status struct {
	ID, Leader string
	Leading    bool // this node's epoch is open
	Term       uint64
	RaftIndex  uint64 // the last of the log
	Applied    clock.Stamp
	Cut        clock.Span // cluster time that stalls of this node, leading, cut off
	// how long nothing is granted because a backup was restored; 0 = no restore hold-off
	HoldOff  clock.Span
	DiskFree uint64 // math.MaxUint64 if it is not known
	// how long the oldest unfinished write to the disk has taken so far; 0 = there is none
	Writing     time.Duration
	Refusing    string // why this node's log takes no entries; "" = it takes them
	Owes        string // what a node waits for whose log has lost its end; "" = nothing
	Incarnation store.ID
}

// Status returns how this node is doing.
func (n *Node) Status() Status {
	run := n.runs.latest.Load()
	s := Status{
		ID: n.cfg.ID, Leading: n.proposer.leads(), Term: run.raft.CurrentTerm(),
		RaftIndex: run.raft.LastIndex(),
		Cut:       clock.Span(n.proposer.cut.Load()), DiskFree: n.store.FreeBytes(),
		Incarnation: n.store.Identity().Incarnation,
	}
	n.View(func(m *fsm.Machine) { s.Applied, s.HoldOff = m.Stamp(), m.HoldOff() })
	if err := cmp.Or(n.proposer.proposals.appendFailure(), n.store.CheckSpace()); err != nil {
		s.Refusing = err.Error()
	}
	if waits := n.tailDebt.status.Load(); waits != nil {
		s.Owes = *waits
	}
	if w, writing := n.store.Writing(); writing {
		s.Writing = time.Since(w.Since)
	}
	s.Leader, _ = n.Leader()
	return s
}

// Close ends the node. A leader transfers the leadership first, and waits for about an election.
func (n *Node) Close() error { return n.close(n.handover.leave) }

// Kill ends the node as a crash would: leadership is not transferred, and the outcome of what is in
// flight stays unknown. The files are closed all the same.
func (n *Node) Kill() error { return n.close(func(*raftRun) {}) }

func (n *Node) close(before func(*raftRun)) error {
	n.closeOnce.Do(func() {
		before(n.runs.latest.Load())
		n.ending.Lock()
		n.endLife()
		n.ending.Unlock()
		n.busy.Wait()
		n.runs.restarting <- struct{}{}
		defer func() { <-n.runs.restarting }()
		n.closed = errors.Join(n.runs.latest.Load().stop(), n.network.Close(), n.store.Close())
	})
	return n.closed
}

// untilClose runs f, which ends with n.life, on a goroutine for which Close waits. It does nothing
// once the node is being closed.
func (n *Node) untilClose(f func()) {
	n.ending.Lock()
	defer n.ending.Unlock()
	if n.life.Err() == nil {
		n.busy.Go(f)
	}
}

func (n *Node) wakeMaintenance() { offer(n.maintainWake, struct{}{}) }

// offer puts v into a channel, unless it is full.
func offer[T any](to chan<- T, v T) {
	select {
	case to <- v:
	default:
	}
}

// sleep waits for d, or until ctx ends, and then returns the cause.
func sleep(ctx context.Context, d time.Duration) error {
	wait, end := context.WithTimeout(ctx, d)
	defer end()
	<-wait.Done()
	return context.Cause(ctx)
}

// Server is a node in raft's configuration.
type Server struct {
	ID, Peer    string // ID is the node's name
	Incarnation peer.Incarnation
	Voter       bool
	// Contact is the age of the latest append to which the server responded, counted from when it
	// was sent. If there is none in this leadership, it is the age of the leadership. Nil on
	// followers, and of the leader itself: only a leader has contact with all nodes.
	Contact *time.Duration
	// Behind is how many entries of this node's log the server lacked at that response; nil if
	// there was none.
	Behind *uint64
}

// Servers lists raft's configuration as this node knows it.
func (n *Node) Servers() (all []Server) {
	run := n.runs.latest.Load()
	led, last := run.ledSince(), run.raft.LastIndex()
	for _, s := range run.servers() {
		id, _ := peer.ParseServer(s.ID) // nothing else has written it
		server := Server{ID: peer.NameOf(s.ID), Peer: string(s.Address),
			Incarnation: id.Incarnation, Voter: s.Suffrage == raft.Voter}
		if n.proposer.leads() && !led.IsZero() && s.ID != n.self.ID() {
			contact := run.contact(s.ID, led)
			server.Contact = new(time.Since(contact.At))
			if contact.At.After(led) {
				server.Behind = new(last - min(last, contact.LastLog))
			}
		}
		all = append(all, server)
	}
	return all
}

// Voter reports whether this node has a vote, as far as it knows.
func (n *Node) Voter() bool {
	return n.runs.latest.Load().servers().voters().has(n.self.ID())
}
