package raftnode

import (
	"cmp"
	"context"
	"fmt"
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

// Server is a node in raft's configuration.
type Server struct {
	ID, Peer    string // ID is the node's name
	Incarnation peer.Incarnation
	Voter       bool
}

// Servers lists raft's configuration as this node knows it.
func (n *Node) Servers() []Server {
	in := n.running()
	if in == nil {
		return nil
	}
	var servers []Server
	for _, s := range in.servers() {
		id, err := peer.ParseServer(s.ID)
		if err != nil {
			id.Name = string(s.ID) // nothing of this release has written it
		}
		servers = append(servers, Server{id.Name, string(s.Address), id.Incarnation, s.Suffrage == raft.Voter})
	}
	return servers
}

// Voter reports whether this node has a vote, as far as it knows.
func (n *Node) Voter() bool {
	in := n.running()
	return in != nil && slices.ContainsFunc(in.servers(), func(s raft.Server) bool {
		return s.ID == n.self.ID() && s.Suffrage == raft.Voter
	})
}

// Join adds a node to the cluster: first without a vote, then, once it has nearly caught up, with one. A node with the
// name and address of a server that has been silent for replaceSilence, and with another data directory, replaces that.
// Only the leader can do it. Each step is in the log, so if ctx or the leadership ends in between, the next Join
// continues from there.
func (n *Node) Join(ctx context.Context, node peer.Node) error {
	in, err := n.leading()
	if err != nil {
		return err
	}
	if err := peer.CheckID(node.ID); err != nil {
		return fmt.Errorf("raftnode: join: %w; %w", err, ErrRefused)
	}
	if err := conflict(in.servers(), node); err != nil {
		return fmt.Errorf("raftnode: join: %w", err)
	}
	server, err := n.newcomer(ctx, node)
	if err != nil {
		return fmt.Errorf("raftnode: join: %w", err)
	}
	if err := n.admit(ctx, in, server, node.Address); err != nil {
		return fmt.Errorf("raftnode: join: %w", err)
	}
	to := peer.Node{ID: server.String(), Address: node.Address}
	if err := n.caughtUp(ctx, to); err != nil {
		return fmt.Errorf("raftnode: join: %s was added without a vote and gets none yet: %w; ask again, or remove it", node.ID, err)
	}
	if err := n.promote(ctx, in, to); err != nil {
		return fmt.Errorf("raftnode: join: %s has no vote yet: %w", node.ID, err)
	}
	n.log.Info("node joined", "id", node.ID, "incarnation", server.Incarnation, "peer", node.Address)
	return nil
}

// newcomer asks the node at an address which server it is. The incarnation comes from the address at which the cluster
// will reach it.
func (n *Node) newcomer(ctx context.Context, node peer.Node) (peer.Server, error) {
	answer, err := n.network.Ask(ctx, node)
	if err != nil {
		return peer.Server{}, fmt.Errorf("%s does not answer at %s: %w; %w; start it with --join first", node.ID, node.Address, err, ErrNotYet)
	}
	var mine fsm.ClusterID
	n.state.view(func(m *fsm.Machine) { mine = m.Cluster() })
	switch {
	case answer.Name != node.ID:
		return peer.Server{}, fmt.Errorf("the node at %s is %s and not %s; %w", node.Address, answer.Name, node.ID, ErrRefused)
	case answer.Cluster != peer.ClusterID(mine):
		return peer.Server{}, fmt.Errorf("%s at %s is not waiting for this cluster, %v (it knows cluster %v); %w; start it with an empty data directory and --join",
			node.ID, node.Address, peer.ClusterID(mine), answer.Cluster, ErrRefused)
	case answer.Member && !n.listed(answer.ID()):
		return peer.Server{}, fmt.Errorf("%s was removed from this cluster; %w; to bring the machine back start it with another, empty data directory", answer.Server, ErrRefused)
	}
	return answer.Server, nil
}

// listed reports whether a server is in raft's latest configuration.
func (n *Node) listed(id raft.ServerID) bool {
	in := n.running()
	return in != nil && configuration{servers: in.servers()}.has(id)
}

// conflict refuses a node whose name, or address, is another's.
func conflict(servers []raft.Server, node peer.Node) error {
	for _, s := range servers {
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

// admit adds a server without a vote, unless it is a member already, after removing the one that it replaces.
func (n *Node) admit(ctx context.Context, in *instance, server peer.Server, address string) error {
	done, err := n.change(ctx)
	if err != nil {
		return err
	}
	defer done()
	servers := in.servers()
	if err := conflict(servers, peer.Node{ID: server.Name, Address: address}); err != nil {
		return err
	}
	var old *raft.Server
	for _, s := range servers {
		if s.ID == server.ID() {
			return nil // it is a member already
		}
		if peer.NameOf(s.ID) == server.Name {
			old = &s
		}
	}
	if old != nil {
		if err := n.mayReplace(ctx, in, *old, server); err != nil {
			return err
		}
		n.log.Warn("a node lost its data directory and is replaced by the new node at its address",
			"id", server.Name, "lost", old.ID, "new", server.ID(), "peer", address)
		if err := n.remove(ctx, in, *old); err != nil {
			return err
		}
	}
	if err := in.waitFor(ctx, in.raft.AddNonvoter(server.ID(), raft.ServerAddress(address), 0, 0)); err != nil {
		return fmt.Errorf("%s was not added, or it is not known whether: %w", server, err)
	}
	return nil
}

// mayReplace returns why a server must not be replaced by another of its name at its address, or nil.
func (n *Node) mayReplace(ctx context.Context, in *instance, old raft.Server, server peer.Server) error {
	since := in.ledSince.Load()
	if since == nil || old.ID == n.self.ID() {
		return n.notLeader()
	}
	if contact := in.transport.Contact(old.ID); contact.At.After(*since) {
		since = &contact.At
	}
	if silent := time.Since(*since); silent < replaceSilence {
		return fmt.Errorf("%s takes the place of the lost %s when that has been silent for %v, and it is for %v; %w",
			server, old.ID, replaceSilence, silent.Round(time.Second), ErrNotYet)
	}
	// Cluster time stands still while nothing is written.
	_, now, err := n.ReadBarrier(ctx)
	if err != nil {
		return err
	}
	var replaced fsm.MemberRecord
	n.state.view(func(m *fsm.Machine) { replaced, _ = m.Member(server.Name) })
	if ago := now.Sub(replaced.Replaced).Duration(); replaced.Replaced != 0 && ago < replacePause {
		return fmt.Errorf("%s was replaced %v ago already, and is not again within %v: if two machines run under this name, end one of them; %w",
			server.Name, ago.Round(time.Second), replacePause, ErrNotYet)
	}
	servers := in.servers()
	for _, s := range servers {
		if s.ID != old.ID && s.Suffrage != raft.Voter {
			return fmt.Errorf("%s is being caught up, and one change is made at a time; %w; if it is gone, `zamok remove %s`",
				peer.NameOf(s.ID), ErrNotYet, peer.NameOf(s.ID))
		}
	}
	if voters := len(votersBut(servers, old.ID)); old.Suffrage == raft.Voter && voters < replaceMin {
		return fmt.Errorf("without %s there are %d voters, and a replacement leaves at least %d; %w; add another node first", old.ID, voters, replaceMin, ErrRefused)
	}
	return nil
}

// votersBut are the servers with a vote, without this one.
func votersBut(servers []raft.Server, id raft.ServerID) (voters []raft.ServerID) {
	for _, s := range servers {
		if s.Suffrage == raft.Voter && s.ID != id {
			voters = append(voters, s.ID)
		}
	}
	return voters
}

// caughtUp waits until a node has nearly caught up with this leader, and checks that it knows the version in force.
func (n *Node) caughtUp(ctx context.Context, node peer.Node) error {
	for {
		index, err := n.appliedAt(ctx, node)
		var mine uint64
		n.state.view(func(m *fsm.Machine) { mine = m.Stamp().Index })
		if err == nil && index+joinLagMax >= mine {
			return n.knowsVersion(peer.NameOf(raft.ServerID(node.ID)))
		}
		if ended := pause(ctx, joinPollEvery); ended != nil {
			return fmt.Errorf("%w (%w)", cmp.Or(err, fmt.Errorf("it is at %d of %d", index, mine)), ended)
		}
	}
}

// promote gives a server its vote.
func (n *Node) promote(ctx context.Context, in *instance, node peer.Node) error {
	done, err := n.change(ctx)
	if err != nil {
		return err
	}
	defer done()
	id, servers := raft.ServerID(node.ID), in.servers()
	at := slices.IndexFunc(servers, func(s raft.Server) bool { return s.ID == id })
	if at < 0 {
		return fmt.Errorf("it was removed meanwhile; %w", ErrRefused)
	}
	if servers[at].Suffrage == raft.Voter {
		return nil
	}
	if err := in.needsLive(ctx, append(votersBut(servers, id), id)); err != nil {
		return err
	}
	return in.waitFor(ctx, in.raft.AddVoter(id, raft.ServerAddress(node.Address), 0, 0))
}

// knowsVersion refuses a node that does not know the state machine version in force: it would end at its next entry. One
// that has not announced what it knows has applied the log up to here under that version.
func (n *Node) knowsVersion(id string) (err error) {
	n.state.view(func(m *fsm.Machine) {
		member, known := m.Member(id)
		if version := m.Version(); known && (version < member.StateVersionMin || version > member.StateVersionMax) {
			err = fmt.Errorf("the cluster's state machine has version %d and its binary knows %d to %d; start another release there",
				version, member.StateVersionMin, member.StateVersionMax)
		}
	})
	return err
}

// Remove removes a node from the cluster. A removal after which no majority of the voters would answer is refused: it
// could not be committed, and the cluster would have no leader from then on.
func (n *Node) Remove(ctx context.Context, name string) error {
	in, err := n.leading()
	if err != nil {
		return err
	}
	done, err := n.change(ctx)
	if err != nil {
		return fmt.Errorf("raftnode: remove: %w", err)
	}
	defer done()
	at := slices.IndexFunc(in.servers(), func(s raft.Server) bool { return peer.NameOf(s.ID) == name })
	if at < 0 {
		return fmt.Errorf("raftnode: remove: %q is no member of this cluster; %w", name, ErrRefused)
	}
	if err := n.remove(ctx, in, in.servers()[at]); err != nil {
		return fmt.Errorf("raftnode: remove: %w", err)
	}
	n.log.Info("node removed", "id", name)
	return nil
}

// remove removes a server, if a majority of the voters that remain answers.
func (n *Node) remove(ctx context.Context, in *instance, server raft.Server) error {
	if server.Suffrage == raft.Voter {
		voters := votersBut(in.servers(), server.ID)
		if len(voters) == 0 {
			return fmt.Errorf("%s is the only voter; %w", server.ID, ErrRefused)
		}
		if err := in.needsLive(ctx, voters); err != nil {
			return err
		}
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
func (in *instance) needsLive(ctx context.Context, voters []raft.ServerID) error {
	began := time.Now()
	for {
		var silent []string
		for _, id := range voters {
			if id != in.node.self.ID() && !in.transport.Contact(id).At.After(began) {
				silent = append(silent, peer.NameOf(id))
			}
		}
		if 2*len(silent) < len(voters) {
			return nil
		}
		if time.Since(began) > liveWait {
			return fmt.Errorf("it would leave %d voters, and of them %v did not answer this leader within %v: no majority; %w; bring them back first",
				len(voters), silent, liveWait, ErrRefused)
		}
		if err := pause(ctx, in.lease()/10); err != nil {
			return fmt.Errorf("%w (%w)", ErrRefused, err)
		}
	}
}

// pause waits, and returns why ctx ended if it does so first.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
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

// Transfer transfers the leadership to a node, or with "" to one that is fit for it. Raft then restarts on this node,
// whatever the result (hashicorp/raft#696).
func (n *Node) Transfer(ctx context.Context, to string) error {
	in, err := n.leading()
	if err != nil {
		return err
	}
	if to == n.cfg.ID {
		return fmt.Errorf("raftnode: transfer: %s leads already; %w", to, ErrRefused)
	}
	server, err := in.nextLeader(to)
	if err != nil {
		return fmt.Errorf("raftnode: transfer: %w", err)
	}
	n.checkpoint(in)
	return n.transferTo(ctx, in, server)
}

// reopen restarts raft, unless that has happened already, or the node is closing.
func (n *Node) reopen(old *instance) error {
	n.changing <- struct{}{}
	defer func() { <-n.changing }()
	if n.running() != old {
		return nil
	}
	n.exchangeInstance(nil)
	if err := old.stop(); err != nil {
		n.log.Warn("raft shut down with an error", "error", err)
	}
	in, err := n.newInstance()
	if err != nil {
		n.fatal(fmt.Errorf("raftnode: raft did not start again: %w", err))
	}
	n.exchangeInstance(in)
	return nil
}

// leading returns the running raft if this node leads.
func (n *Node) leading() (*instance, error) {
	in := n.running()
	if in == nil || !n.queue.isOpen() {
		return nil, n.notLeader()
	}
	return in, nil
}

// checkpoint proposes an entry now, so that a change of leader loses no cluster time.
func (n *Node) checkpoint(in *instance) {
	ctx, cancel := context.WithTimeout(context.Background(), in.timeout)
	defer cancel()
	if _, _, err := n.ReadBarrier(ctx); err != nil {
		n.log.Debug("could not write a checkpoint before the leadership transfer", "error", err)
	}
}

// servers are those of raft's latest configuration, which may not be committed.
func (in *instance) servers() []raft.Server {
	return in.raft.GetConfiguration().Configuration().Servers
}

// waitFor waits for a future of raft, or until ctx ends: then the outcome is unknown.
func (in *instance) waitFor(ctx context.Context, future raft.Future) error {
	done := make(chan error, 1)
	go func() { done <- waitAnswered(in.over, future).Error() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w (%w)", ErrUnknown, context.Cause(ctx))
	}
}
