package raftnode

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"zamok/fsm"
	"zamok/raftnode/peer"
)

const (
	// joinLagMax is how close to the leader's index a new member must be to become a voter.
	joinLagMax = 100
	// joinPollEvery is how often that is checked.
	joinPollEvery = 100 * time.Millisecond
	// replaceSilence is how long a server must not have answered this leader before a node of the same name, with
	// another data directory, replaces it.
	replaceSilence = 30 * time.Second
	// replacePause is how long after that no third data directory gets the name: two machines that run under one name
	// would replace each other forever.
	replacePause = 10 * time.Minute
	// replaceMin is how many voters remain while a server is replaced: with fewer the loss of one more disk would lose
	// acknowledged entries.
	replaceMin = 2
	// liveWait is how long voters may take to answer before a change that needs them is refused.
	liveWait = time.Second
)

// ErrRemoved ends the process of a node that was removed from its cluster.
var ErrRemoved = errors.New("raftnode: this node was removed from its cluster, and its data directory can't come back; " +
	"to bring the machine back, start it with another, empty data directory and --join")

// Server is a node in raft's configuration.
type Server struct {
	ID, Peer    string // ID is the node's name
	Incarnation peer.Incarnation
	Voter       bool
	// Contact is how long ago the latest append was sent that it has answered, or since when this node leads, if it has
	// answered none since. Nil if this node does not lead, or is it: only a leader has contact with all nodes.
	Contact *time.Duration
	// Behind is how many entries of this node's log it lacked at that answer; nil if there was none.
	Behind *uint64
}

// Servers lists raft's configuration as this node knows it.
func (n *Node) Servers() (all []Server) {
	in := n.instance.Load()
	led, last := in.led(), in.raft.LastIndex()
	for _, s := range in.servers() {
		id, _ := peer.ParseServer(s.ID) // nothing else has written it
		server := Server{ID: peer.NameOf(s.ID), Peer: string(s.Address), Incarnation: id.Incarnation, Voter: s.Suffrage == raft.Voter}
		if n.queue.open.Load() && !led.IsZero() && s.ID != n.self.ID() {
			contact := in.contact(s.ID, led)
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
	return n.instance.Load().servers().voters().has(n.self.ID())
}

// servers are those of one of raft's configurations.
type servers []raft.Server

// voters are the servers with a vote, in a list of their own.
func (s servers) voters() servers {
	return slices.DeleteFunc(slices.Clone(s), func(server raft.Server) bool { return server.Suffrage != raft.Voter })
}

// without are the servers but this one, in a list of their own: raft shares the one of its configuration.
func (s servers) without(id raft.ServerID) servers {
	return slices.DeleteFunc(slices.Clone(s), func(server raft.Server) bool { return server.ID == id })
}

func (s servers) has(id raft.ServerID) bool {
	return slices.ContainsFunc(s, func(server raft.Server) bool { return server.ID == id })
}

// named returns the server of a node; nil = there is none.
func (s servers) named(name string) *raft.Server {
	if i := slices.IndexFunc(s, func(server raft.Server) bool { return peer.NameOf(server.ID) == name }); i >= 0 {
		return &s[i]
	}
	return nil
}

// Join adds a node to the cluster: first without a vote, then, once it has nearly caught up, with one. A node with the
// name and address of a server that has been silent for replaceSilence, and with another data directory, replaces that.
// Only the leader can do it. Each step is in the log, so if ctx or the leadership ends in between, the next Join
// continues from there.
func (n *Node) Join(ctx context.Context, node peer.Node) error {
	return n.join(ctx, node, peer.Server{})
}

// join is Join for the node that asks for it; zero = an operator asks.
func (n *Node) join(ctx context.Context, node peer.Node, asks peer.Server) error {
	in, err := n.leading()
	if err != nil {
		return err
	}
	server, err := n.addNonvoter(ctx, in, node, asks)
	if err != nil {
		return fmt.Errorf("raftnode: join: %w", err)
	}
	if err := n.caughtUp(ctx, server); err != nil {
		return fmt.Errorf("raftnode: join: %s was added without a vote and gets none yet: %w; ask again, or remove it", node.ID, err)
	}
	if err := n.promote(ctx, in, server, node.Address); err != nil {
		return fmt.Errorf("raftnode: join: %s has no vote yet: %w", node.ID, err)
	}
	return nil
}

// newcomer asks the node at an address which server it is. The incarnation comes from the address at which the cluster
// will reach it.
func (n *Node) newcomer(ctx context.Context, in *instance, node peer.Node, asks peer.Server) (peer.Server, error) {
	answer, err := n.network.Ask(ctx, node)
	if err != nil {
		return peer.Server{}, fmt.Errorf("%s does not answer at %s: %w; %w; start it with --join first", node.ID, node.Address, err, ErrNotYet)
	}
	var mine fsm.ClusterID
	n.View(func(m *fsm.Machine) { mine = m.Cluster() })
	switch {
	case answer.Name != node.ID:
		return peer.Server{}, fmt.Errorf("the node at %s is %s and not %s; %w", node.Address, answer.Name, node.ID, ErrRefused)
	case asks != (peer.Server{}) && answer.Server != asks:
		return peer.Server{}, fmt.Errorf("at %s is another machine of the name %s, with incarnation %v, and %v asks to be added; %w; give one of them a name of its own",
			node.Address, answer.Name, answer.Incarnation, asks.Incarnation, ErrRefused)
	case answer.Cluster != peer.ClusterID(mine):
		return peer.Server{}, fmt.Errorf("%s at %s is not waiting for this cluster, %v (it knows cluster %v); %w; start it with an empty data directory and --join",
			node.ID, node.Address, peer.ClusterID(mine), answer.Cluster, ErrRefused)
	case answer.Member && !in.servers().has(answer.ID()):
		return peer.Server{}, fmt.Errorf("%s was removed from this cluster; %w; to bring the machine back start it with another, empty data directory", answer.Server, ErrRefused)
	}
	return answer.Server, nil
}

// conflict refuses a node whose name, or address, is another's.
func (list servers) conflict(node peer.Node) error {
	for _, s := range list {
		name, sameAddress := peer.NameOf(s.ID), string(s.Address) == node.Address
		switch {
		case name == node.ID && !sameAddress:
			return fmt.Errorf("%s is a member at %s and not at %s: two machines must not have one name; %w; `zamok remove %s` first if the one at %s is gone for good",
				name, s.Address, node.Address, ErrRefused, name, s.Address)
		case name != node.ID && sameAddress:
			return fmt.Errorf("%s is the address of %s; %w; `zamok remove %s` first if that is gone for good", node.Address, name, ErrRefused, name)
		}
	}
	return nil
}

// addNonvoter adds a node without a vote, unless it is a member already, after removing the server that it replaces.
func (n *Node) addNonvoter(ctx context.Context, in *instance, node peer.Node, asks peer.Server) (server peer.Server, err error) {
	if err := peer.CheckID(node.ID); err != nil {
		return server, fmt.Errorf("%w; %w", err, ErrRefused)
	}
	if err := in.servers().conflict(node); err != nil {
		return server, err
	}
	// The node is asked before the change begins: a leader can't step aside in one.
	if server, err = n.newcomer(ctx, in, node, asks); err != nil {
		return server, err
	}
	done, err := n.change(ctx)
	if err != nil {
		return server, err
	}
	defer done()
	list := in.servers()
	if err := list.conflict(node); err != nil {
		return server, err
	}
	if list.has(server.ID()) {
		return server, nil
	}
	if old := list.named(server.Name); old != nil {
		if err := n.mayReplace(ctx, in, *old, server); err != nil {
			return server, err
		}
		n.log.Warn("a node lost its data directory and is replaced by the new node at its address",
			"id", server.Name, "lost", old.ID, "new", server.ID(), "peer", node.Address)
		if err := n.remove(ctx, in, *old); err != nil {
			return server, err
		}
	}
	if err := in.waitFor(ctx, in.raft.AddNonvoter(server.ID(), raft.ServerAddress(node.Address), 0, 0)); err != nil {
		return server, fmt.Errorf("%s was not added, or it is not known whether: %w", server, err)
	}
	return server, nil
}

// mayReplace returns why a server must not be replaced by another of its name at its address, or nil. The node that asks logs
// each reason that differs from the one before, so times in it are rounded.
func (n *Node) mayReplace(ctx context.Context, in *instance, old raft.Server, server peer.Server) error {
	led := in.led()
	if led.IsZero() || old.ID == n.self.ID() {
		return n.notLeader()
	}
	if silent := time.Since(in.contact(old.ID, led).At); silent < replaceSilence {
		return fmt.Errorf("%s takes the place of the lost %s when that has been silent for %v, and it is for %v; %w",
			server, old.ID, replaceSilence, silent.Truncate(10*time.Second), ErrNotYet)
	}
	// Cluster time stands still while nothing is written.
	_, now, err := n.ReadBarrier(ctx)
	if err != nil {
		return err
	}
	replaced := n.member(server.Name).Replaced
	if ago := now.Sub(replaced).Duration(); replaced != 0 && ago < replacePause {
		return fmt.Errorf("%s was replaced %v ago already, and is not again within %v: if two machines run under this name, end one of them; %w",
			server.Name, ago.Truncate(time.Minute), replacePause, ErrNotYet)
	}
	list := in.servers()
	for _, s := range list {
		if s.ID != old.ID && s.Suffrage != raft.Voter {
			return fmt.Errorf("%s is being caught up, and one change is made at a time; %w; if it is gone, `zamok remove %s`",
				peer.NameOf(s.ID), ErrNotYet, peer.NameOf(s.ID))
		}
	}
	if voters := len(list.voters().without(old.ID)); old.Suffrage == raft.Voter && voters < replaceMin {
		return fmt.Errorf("without %s there are %d voters, and a replacement leaves at least %d; %w; add another node first", old.ID, voters, replaceMin, ErrRefused)
	}
	return nil
}

// caughtUp waits until a server has announced itself and has nearly all entries of this leader, and refuses one that does
// not know the state machine version in force: it would end at its next entry.
func (n *Node) caughtUp(ctx context.Context, server peer.Server) error {
	for {
		in, err := n.leading()
		if err != nil {
			return err
		}
		member, version := n.member(server.Name), n.state.version.Load()
		announced := member.Incarnation == fsm.Incarnation(server.Incarnation)
		has, last := in.transport.Contact(server.ID()).Acknowledged, in.raft.LastIndex()
		switch {
		case announced && (version < member.StateVersionMin || version > member.StateVersionMax):
			return fmt.Errorf("the cluster's state machine has version %d and its binary knows %d to %d; start another release there",
				version, member.StateVersionMin, member.StateVersionMax)
		case announced && has > 0 && has+joinLagMax >= last, in.servers().voters().has(server.ID()):
			return nil
		}
		if ended := pause(ctx, joinPollEvery); ended != nil {
			return fmt.Errorf("it has %d of %d entries (%w)", has, last, ended)
		}
	}
}

// promote gives a server its vote.
func (n *Node) promote(ctx context.Context, in *instance, server peer.Server, address string) error {
	done, err := n.change(ctx)
	if err != nil {
		return err
	}
	defer done()
	id, list := server.ID(), in.servers()
	voters := list.voters()
	switch {
	case !list.has(id):
		return fmt.Errorf("it was removed meanwhile; %w", ErrRefused)
	case voters.has(id):
		return nil
	}
	if err := in.needsLive(ctx, append(voters, raft.Server{ID: id})); err != nil {
		return err
	}
	if err := in.waitFor(ctx, in.raft.AddVoter(id, raft.ServerAddress(address), 0, 0)); err != nil {
		return err
	}
	n.log.Info("node joined", "id", server.Name, "incarnation", server.Incarnation, "peer", address)
	return nil
}

// Remove removes a node from the cluster. A removal after which no majority of the voters would answer is refused: it
// could not be committed, and the cluster would have no leader from then on. A leader that is to remove itself hands over
// instead, and its NotLeaderError names the node that can do it: its removal would cost the others an election.
func (n *Node) Remove(ctx context.Context, name string) error {
	in, err := n.leading()
	if err != nil {
		return err
	}
	done, err := n.change(ctx)
	if err == nil {
		defer done()
		if server := in.servers().named(name); server == nil {
			err = fmt.Errorf("%q is no member of this cluster; %w", name, ErrRefused)
		} else {
			err = n.remove(ctx, in, *server)
		}
	}
	if err != nil {
		return fmt.Errorf("raftnode: remove: %w", err)
	}
	n.log.Info("node removed", "id", name)
	return nil
}

// remove removes another server, if a majority of the voters that remain answers, or hands over to one that can.
func (n *Node) remove(ctx context.Context, in *instance, server raft.Server) error {
	if server.Suffrage == raft.Voter {
		voters := in.servers().voters().without(server.ID)
		if len(voters) == 0 {
			return fmt.Errorf("%s is the only voter; %w", server.ID, ErrRefused)
		}
		if err := in.needsLive(ctx, voters); err != nil {
			return err
		}
	}
	if server.ID == n.self.ID() {
		return n.handOver(ctx, in)
	}
	in.transport.Removing(server.ID)
	if err := in.waitFor(ctx, in.raft.RemoveServer(server.ID, 0, 0)); err != nil {
		return fmt.Errorf("%s was not removed, or it is not known whether: %w", server.ID, err)
	}
	return nil
}

// needsLive refuses a change that would leave these voters without a majority that answers: raft uses a configuration
// from the moment that it is written, so the change could not be committed. Only answers to appends that are sent from
// now on count: a node that answered a moment ago may have died since.
func (in *instance) needsLive(ctx context.Context, voters servers) error {
	began := time.Now()
	for {
		var silent []string
		for _, s := range voters {
			if s.ID != in.node.self.ID() && !in.transport.Contact(s.ID).At.After(began) {
				silent = append(silent, peer.NameOf(s.ID))
			}
		}
		if 2*len(silent) < len(voters) {
			return nil
		}
		if time.Since(began) > liveWait {
			return fmt.Errorf("it would leave %d voters, and of them %v did not answer this leader within %v: no majority; %w; bring them back first",
				len(voters), silent, liveWait, ErrRefused)
		}
		if err := pause(ctx, in.node.timeout()/10); err != nil {
			return fmt.Errorf("%w (%w)", ErrRefused, err)
		}
	}
}

// change begins a change of the members: one is made at a time, on the configuration that the previous one left.
func (n *Node) change(ctx context.Context) (done func(), err error) {
	select {
	case n.membership <- struct{}{}:
		return func() { <-n.membership }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("another change of the members is under way; %w (%w)", ErrNotYet, context.Cause(ctx))
	}
}

// checkRemoved ends the process if the others report that this node has been removed. Raft does not notify a removed
// follower, which then asks for votes in vain. Only a committed configuration counts that is later than any that names this
// node: an uncommitted removal may be undone, and a node that lags behind may not know yet that this one joined. With TLS
// only a node that is known counts: the list may name one that was itself removed.
func (n *Node) checkRemoved(replies []peer.Reply) {
	id, listed := n.store.Identity(), n.listedAt
	if now := n.state.committed.Load(); now.servers.has(n.self.ID()) {
		listed = max(listed, now.index)
	}
	for _, reply := range replies {
		theirs := reply.Answer
		if reply.Err == nil && id.Bootstrapped && theirs.Cluster == peer.ClusterID(id.Cluster) && !theirs.Listed && theirs.Configuration > listed &&
			(n.cfg.Peers.TLS == nil || theirs.Name == reply.Node.ID && n.knows(theirs.Server)) {
			n.fatal(fmt.Errorf("%w (%s at %s reports it: the configuration that was committed at index %d does not name this node)",
				ErrRemoved, theirs.Name, reply.Node.Address, theirs.Configuration))
		}
	}
}

// others are the nodes that this one knows of: those of its latest configuration and of its list, an address once.
func (n *Node) others(in *instance) (others []peer.Node) {
	for _, s := range in.servers() {
		others = append(others, peer.Node{ID: peer.NameOf(s.ID), Address: string(s.Address)})
	}
	for _, node := range n.cfg.Peers.List.Nodes() {
		if !slices.ContainsFunc(others, func(other peer.Node) bool { return other.Address == node.Address }) {
			others = append(others, node)
		}
	}
	return slices.DeleteFunc(others, func(node peer.Node) bool { return node.ID == n.cfg.ID })
}

// configurations yields those in a log, the latest first, and then that of the latest snapshot.
func configurations(logs raft.LogStore, snapshots raft.SnapshotStore) iter.Seq2[configuration, error] {
	return func(yield func(configuration, error) bool) {
		first, firstErr := logs.FirstIndex()
		last, lastErr := logs.LastIndex()
		err := errors.Join(firstErr, lastErr)
		for i := last; err == nil && i >= max(first, 1); i-- {
			var l raft.Log
			err = logs.GetLog(i, &l)
			if err == nil && l.Type == raft.LogConfiguration && !yield(configuration{i, raft.DecodeConfiguration(l.Data).Servers}, nil) {
				return
			}
		}
		if err == nil {
			var metas []*raft.SnapshotMeta
			if metas, err = snapshots.List(); err == nil && len(metas) > 0 {
				yield(configuration{metas[0].ConfigurationIndex, metas[0].Configuration.Servers}, nil)
				return
			}
		}
		if err != nil {
			yield(configuration{}, err)
		}
	}
}

// readConfigurations sets opened and listedAt from the configurations on this node's disk.
func (n *Node) readConfigurations(logs raft.LogStore, snapshots raft.SnapshotStore) error {
	seen := 0
	for c, err := range configurations(logs, snapshots) {
		if err != nil {
			return err
		}
		if seen++; seen <= 2 {
			n.opened = configuration{max(n.opened.index, c.index), append(n.opened.servers, c.servers...)}
		}
		if n.listedAt == 0 && c.servers.has(n.self.ID()) {
			n.listedAt = c.index
		}
		if seen >= 2 && n.listedAt > 0 {
			break
		}
	}
	return nil
}

// namesMax bounds the names of servers that a node reports to another; a cluster has fewer.
const namesMax = 64

// reported is a configuration that another server reported, committed or the latest in its log.
type reported struct {
	index uint64 // of the configuration, in raft
	names []string
}

// knows reports whether the cluster has a server of a name, as far as this node knows: in the configuration that is
// committed, or in the one that may be (raft acts on the latest, but a leader that the latest lacks leads until that is
// committed), or in a later one which a server that it knows has reported. A node without a configuration knows also those
// that it was given: its list, and the members of the cluster that it waits for.
func (n *Node) knows(s peer.Server) bool {
	in, committed := n.instance.Load(), n.state.committed.Load()
	if in == nil {
		return true // no request is served before raft runs
	}
	latest := in.servers()
	if len(latest) == 0 && (n.cfg.Peers.List.Has(s.Name) || n.waitsFor(s.Name)) {
		return true
	}
	if latest.named(s.Name) != nil || committed.servers.named(s.Name) != nil ||
		committed.index < n.opened.index && n.opened.servers.named(s.Name) != nil {
		return true
	}
	v := n.reported.Load()
	return v != nil && v.index > committed.index && slices.Contains(v.names, s.Name)
}

// noteReported notes the members that known servers have reported, while no leader lasts: one that this node does not know
// may be calling in vain, since it joined while this node was away.
func (n *Node) noteReported(replies []peer.Reply) {
	cluster := peer.ClusterID(n.store.Identity().Cluster)
	latest, mine := reported{index: n.state.committed.Load().index}, n.instance.Load().servers()
	for _, reply := range replies {
		theirs := reply.Answer
		same := cluster != (peer.ClusterID{}) && theirs.Cluster == cluster
		if cluster == (peer.ClusterID{}) { // an initial member that was away since it began has the incarnations of the others
			same = mine.has(theirs.ID())
		}
		if reply.Err == nil && same && theirs.Name == reply.Node.ID && n.knows(theirs.Server) && theirs.NamesAt > latest.index {
			latest = reported{theirs.NamesAt, theirs.Names}
		}
	}
	if latest.names != nil {
		n.reported.Store(&latest)
	}
}
