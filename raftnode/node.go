package raftnode

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
	"zamok/session"
)

// Node is one node of a cluster. Its methods may be called from any goroutine.
type Node struct {
	cfg        Config
	log        *slog.Logger
	limitedLog *peer.RateLimitedLog // for what other nodes cause
	store      *store.Store
	network    *peer.Network
	state      state
	queue      *queue
	proposals  proposals
	self       peer.Server // what raft calls this node
	// listedAt is the index of the latest configuration with this node that was in its log, or snapshot,
	// when it was opened. Never changed; 0 = there was none.
	listedAt uint64
	// opened is the latest configuration then, and with it the servers of the one before: raft says only which is the
	// latest, and that need not be committed. Never changed.
	opened    configuration
	reported  atomic.Pointer[reported] // a later configuration that a known server reported; nil = none
	joins     atomic.Pointer[[]string] // names of the cluster that this node waits for, as that reported them; nil = none
	cut       atomic.Int64             // cluster time that stalls of this leader cut off, in ns
	noRoom    atomic.Pointer[string]   // why this leader admits nothing new; nil or empty = it does
	stalls    peer.Repeated            // how long this process was kept from running
	chosen    atomic.Int64             // this node's timeout, in ns
	reloading sync.Mutex               // held while raft takes it
	short     shortTTLs
	known     atomic.Int64 // the timeout of a majority of the nodes with a vote, in ns
	writes    writes
	moves     moves

	maintainWake chan struct{}          // capacity 1
	owed         chan struct{}          // capacity 1: this node owes something now
	owes         atomic.Pointer[string] // what it waits for in order to owe nothing; nil = nothing
	life         context.Context        // until Close or Kill
	endLife      context.CancelFunc
	closeOnce    sync.Once
	closed       error
	busy         sync.WaitGroup // what Close waits for; see untilClose
	ending       sync.Mutex     // held while life ends, and while busy grows after Open

	membership chan struct{} // capacity 1: full while a change of the members is being made
	joining    sync.Map      // the names of nodes that asked to be added, while this leader does it

	changing chan struct{}            // capacity 1: full while raft is stopped or replaced, which may take as long as a disk stalls
	instance atomic.Pointer[instance] // the latest run of raft, which has ended in between and after Close; set by Open
}

// Open opens a node. With an empty directory and a list of initial members it asks the others of the list, and waits,
// until ctx ends, for all of them to agree to bootstrap.
func Open(ctx context.Context, cfg Config) (_ *Node, err error) {
	cfg, err = cfg.settled()
	if err != nil {
		return nil, err
	}
	n := &Node{
		cfg: cfg, log: cfg.Logger, limitedLog: peer.NewRateLimitedLog(cfg.Logger), queue: newQueue(), proposals: proposals{byBytes: make(map[*byte]*proposal)},
		maintainWake: make(chan struct{}, 1), changing: make(chan struct{}, 1), membership: make(chan struct{}, 1),
		owed: make(chan struct{}, 1),
	}
	n.life, n.endLife = context.WithCancel(context.Background())
	n.state.node, n.proposals.fatal = n, n.fatal
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
	n.proposals.LogStore, n.proposals.MonotonicLogStore = logs, logs.(raft.MonotonicLogStore)
	identity := n.store.Identity()
	cluster := identity.Cluster
	if !n.store.HoldsData() {
		cluster = store.ID{} // the cluster that it once waited for may be another one
	}
	timeout := cmp.Or(cfg.ElectionTimeout, timeoutOf(identity.Timeout), timeoutMin)
	n.chosen.Store(int64(timeout))
	n.known.Store(int64(timeout))
	n.self = peer.Server{Name: cfg.ID, Incarnation: peer.Incarnation(identity.Incarnation)}
	if _, err := peer.ParseInitialMembers(identity.Initial); err != nil {
		return nil, fmt.Errorf("raftnode: %w: identity.json of %s: %w; nothing was changed; start the release that wrote it", store.ErrLost, cfg.ID, err)
	}
	if err := n.readConfigurations(logs, n.store.Snapshots()); err != nil {
		return nil, err
	}
	peers := &cfg.Peers
	peers.Format = fsm.Format()
	peers.ID, peers.Incarnation, peers.Cluster, peers.Logger = cfg.ID, n.self.Incarnation, peer.ClusterID(cluster), cfg.Logger
	peers.Knows, peers.Condition, peers.Term, peers.Handle = n.knows, n.condition, n.store.Term, n.handleCall
	peers.WaitWritten, peers.Report, peers.MayCampaign = n.store.WaitWritten, n.report, n.mayCampaign
	peers.Tail, peers.Owe = n.store.Tail, n.makeOwe
	n.network, err = peer.New(cfg.Peers)
	if err != nil {
		return nil, err
	}
	undo = func() error { return errors.Join(n.network.Close(), n.store.Close()) }
	if err := n.start(ctx); err != nil {
		return nil, err
	}
	undo = nil
	n.busy.Go(n.maintain)
	n.busy.Go(n.regainTail)
	n.busy.Go(n.watch)
	n.busy.Go(n.watchProgress)
	n.busy.Go(n.measurePauses)
	return n, nil
}

// openStore opens this node's data, and has the time of its writes noted.
func (n *Node) openStore(cfg store.Config) (err error) {
	cfg.Format, cfg.NodeID, cfg.Fatal = fsm.Format(), n.cfg.ID, n.cfg.Fatal
	cfg.Postpone, cfg.Written = n.mayPostpone, n.proposals.written
	observe := cfg.Observe
	cfg.Observe = func(took time.Duration) {
		n.writes.add(took)
		if observe != nil {
			observe(took)
		}
	}
	n.store, err = store.Open(cfg)
	return err
}

// fatal ends the process, and at least this goroutine, so that it does not continue.
func (n *Node) fatal(err error) {
	n.log.Error("fatal: this process must exit", "error", err)
	n.cfg.Fatal(err)
	runtime.Goexit()
}

type identityKey struct{}

// From returns a context for commands of an identity. Without it, commands are this node's own.
func From(ctx context.Context, identity string) context.Context {
	return context.WithValue(ctx, identityKey{}, identity)
}

// Submit proposes a command, which counts for the identity in ctx (From). done is called once, perhaps before Submit returns. The
// end of ctx does not cancel the command.
func (n *Node) Submit(ctx context.Context, c fsm.Command, done Done) {
	from, _ := ctx.Value(identityKey{}).(string)
	n.put(request{from: from, command: c, since: time.Now(), done: done})
}

// Propose is Submit that waits for the answer. If ctx ends first the outcome is unknown.
func (n *Node) Propose(ctx context.Context, c fsm.Command) (Answer, error) {
	return Wait(ctx, func(done Done) { n.Submit(ctx, c, done) })
}

// Wait submits something and waits for the answer. If ctx ends first the outcome is unknown.
func Wait(ctx context.Context, submit func(Done)) (Answer, error) {
	var answer Answer
	var err error
	answered := make(chan struct{})
	submit(func(a Answer, failed error) {
		answer, err = a, failed
		close(answered)
	})
	select {
	case <-answered:
		return answer, err
	case <-ctx.Done():
		return Answer{}, fmt.Errorf("%w (%w)", ErrUnknown, context.Cause(ctx))
	}
}

// Renew proposes the renewal of a session. The answer's code is OK or NoSession.
func (n *Node) Renew(id session.ID, done Done) {
	n.put(request{renews: true, session: id, since: time.Now(), done: done})
}

// Crowded reports whether more commands wait than the next entry of the log can take.
func (n *Node) Crowded() bool { return n.queue.crowded() }

// ReadBarrier returns when everything that was acknowledged anywhere before the call is in this node's state
// machine (N5), with the state machine's stamp and time.
func (n *Node) ReadBarrier(ctx context.Context) (clock.Stamp, clock.Time, error) {
	a, err := n.Propose(ctx, nil)
	return a.Stamp, a.Time, err
}

// put adds a request to the queue, and answers the requests that the queue refuses.
func (n *Node) put(r request) {
	refused, err := n.queue.put(r)
	if err == errNotLeading {
		err = n.notLeader()
	}
	for _, r := range refused {
		r.done(Answer{}, err)
	}
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
	id = peer.NameOf(n.instance.Load().leader())
	return id, n.member(id).Client
}

// member is what a node has announced, as far as this one knows; zero = nothing.
func (n *Node) member(name string) (record fsm.MemberRecord) {
	n.View(func(m *fsm.Machine) { record, _ = m.Member(name) })
	return record
}

// View lets f read this node's state machine, which may be behind the leader's; after ReadBarrier it is not. f
// must not keep it, nor call this node.
func (n *Node) View(f func(*fsm.Machine)) {
	n.state.mu.RLock()
	defer n.state.mu.RUnlock()
	f(n.state.machine)
}

// Freeze returns this node's current state, in the time that a snapshot takes to begin. After ReadBarrier it has all
// that was acknowledged before. It may be written while the node continues.
func (n *Node) Freeze() *fsm.Frozen {
	n.state.mu.Lock()
	defer n.state.mu.Unlock()
	return n.state.machine.Freeze()
}

// Status is how a node is doing.
type Status struct {
	ID, Leader  string
	Leading     bool // this node's epoch is open
	Term        uint64
	RaftIndex   uint64 // the last of the log
	Applied     clock.Stamp
	Cut         clock.Span    // cluster time that stalls of this node, leading, cut off
	HoldOff     clock.Span    // how long nothing is granted because a backup was restored; 0 = no restore hold-off
	DiskFree    uint64        // math.MaxUint64 if it is not known
	Writing     time.Duration // how long the oldest write to the disk has been going on; 0 = there is none
	Refusing    string        // why this node's log takes no entries; "" = it takes them
	Owes        string        // what a node waits for whose log has lost its end; "" = nothing
	Incarnation store.ID
}

// Status returns how this node is doing.
func (n *Node) Status() Status {
	in := n.instance.Load()
	s := Status{
		ID: n.cfg.ID, Leading: n.queue.open.Load(), Term: in.raft.CurrentTerm(), RaftIndex: in.raft.LastIndex(),
		Cut: clock.Span(n.cut.Load()), DiskFree: n.store.FreeBytes(), Incarnation: n.store.Identity().Incarnation,
	}
	n.View(func(m *fsm.Machine) { s.Applied, s.HoldOff = m.Stamp(), m.HoldOff() })
	if err := cmp.Or(n.proposals.refusing(), n.store.CheckSpace()); err != nil {
		s.Refusing = err.Error()
	}
	if waits := n.owes.Load(); waits != nil {
		s.Owes = *waits
	}
	if w, writing := n.store.Writing(); writing {
		s.Writing = time.Since(w.Since)
	}
	s.Leader, _ = n.Leader()
	return s
}

// Close ends the node. A leader transfers the leadership first, and waits for about an election.
func (n *Node) Close() error { return n.close((*instance).leave) }

// Kill ends the node as a crash would: leadership is not transferred, and the outcome of what is in flight stays
// unknown. The files are closed all the same.
func (n *Node) Kill() error { return n.close(func(*instance) {}) }

func (n *Node) close(before func(*instance)) error {
	n.closeOnce.Do(func() {
		before(n.instance.Load())
		n.ending.Lock()
		n.endLife()
		n.ending.Unlock()
		n.busy.Wait()
		n.changing <- struct{}{}
		defer func() { <-n.changing }()
		n.closed = errors.Join(n.instance.Load().stop(), n.network.Close(), n.store.Close())
	})
	return n.closed
}

// untilClose runs f, which ends with n.life, on a goroutine for which Close waits. It does nothing once the node is being closed.
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

// pause waits, and returns why ctx ended if it does so first.
func pause(ctx context.Context, d time.Duration) error {
	wait, end := context.WithTimeout(ctx, d)
	defer end()
	<-wait.Done()
	return context.Cause(ctx)
}
