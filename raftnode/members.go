package raftnode

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
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
	// replaceSilence is how long a server must not have answered this leader before a node of the
	// same name, with another data directory, replaces it.
	replaceSilence = 30 * time.Second
	// replaceInterval is how long after that no third data directory gets the name: two machines
	// that run under one name would replace each other forever.
	replaceInterval = 10 * time.Minute
	// replaceMin is how many voters remain while a server is replaced: with fewer the loss of one
	// more disk would lose acknowledged entries.
	replaceMin = 2
	// liveWait is how long voters may take to answer before a change that needs them is refused.
	liveWait = time.Second
)

// servers are those of one of raft's configurations.
type servers []raft.Server

// voters are the servers with a vote, in a list of their own.
func (s servers) voters() servers {
	return slices.DeleteFunc(slices.Clone(s),
		func(server raft.Server) bool { return server.Suffrage != raft.Voter })
}

// without are the servers but this one, in a list of their own: raft shares the one of its
// configuration.
func (s servers) without(id raft.ServerID) servers {
	return slices.DeleteFunc(slices.Clone(s),
		func(server raft.Server) bool { return server.ID == id })
}

func (s servers) has(id raft.ServerID) bool {
	return slices.ContainsFunc(s, func(server raft.Server) bool { return server.ID == id })
}

// named returns the server of a node; nil = there is none.
func (s servers) named(name string) *raft.Server {
	if i := slices.IndexFunc(s,
		func(server raft.Server) bool { return peer.NameOf(server.ID) == name }); i >= 0 {
		return &s[i]
	}
	return nil
}

// changes adds, replaces and removes members, one at a time.
type changes struct {
	*base
	state      *state
	proposer   *proposer
	runs       *raftRuns
	handover   *handover
	untilClose func(f func()) // runs f on a goroutine for which Close waits; see Node.untilClose
	slot       chan struct{}  // capacity 1: full while a change is being made
	// names of nodes that requested to be added, while this leader does it
	joining sync.Map
}

// join is Node.Join at the request of a node; zero = of an operator.
func (c *changes) join(ctx context.Context, node peer.Node, requester peer.Server) error {
	run, err := c.runs.leading()
	if err != nil {
		return err
	}
	server, err := c.addNonvoter(ctx, run, node, requester)
	if err != nil {
		return changeError("join", err)
	}
	if err := c.caughtUp(ctx, server); err != nil {
		return changeError("join", fmt.Errorf(
			"%s was added without a vote and gets none yet: %w; request it again, or remove "+
				"the node", node.ID, err))
	}
	if err := c.promote(ctx, run, server, node.Address); err != nil {
		return changeError("join", fmt.Errorf("%s has no vote yet: %w", node.ID, err))
	}
	return nil
}

// serverAt asks the node at an address which server it is. The incarnation comes from the address
// at which the cluster will reach it.
func (c *changes) serverAt(
	ctx context.Context, run *raftRun, node peer.Node, requester peer.Server) (peer.Server, error) {
	answer, err := c.network.Ask(ctx, node)
	if err != nil {
		return peer.Server{}, fmt.Errorf(
			"%s does not answer at %s: %w; %w; start it with --join first", node.ID, node.Address,
			err, ErrNotYet)
	}
	var mine fsm.ClusterID
	c.state.view(func(m *fsm.Machine) { mine = m.Cluster() })
	// An initial member learns the cluster when it applies its first entry; its incarnation
	// identifies it.
	member := run.servers().has(answer.ID())
	switch {
	case answer.Name != node.ID:
		return peer.Server{}, fmt.Errorf("the node at %s is %s and not %s; %w", node.Address,
			answer.Name, node.ID, ErrRefused)
	case requester != (peer.Server{}) && answer.Server != requester:
		return peer.Server{}, fmt.Errorf(
			"at %s is another machine of the name %s, with incarnation %v, and %v requests to be "+
				"added; %w; give one of them a name of its own",
			node.Address, answer.Name, answer.Incarnation, requester.Incarnation, ErrRefused)
	case answer.Cluster != peer.ClusterID(mine) && (answer.Cluster != peer.ClusterID{} || !member):
		return peer.Server{}, fmt.Errorf(
			"%s at %s is not waiting for this cluster, %v (it knows cluster %v); %w; start it "+
				"with an empty data directory and --join",
			node.ID, node.Address, peer.ClusterID(mine), answer.Cluster, ErrRefused)
	case answer.Member && !member:
		return peer.Server{}, fmt.Errorf(
			"%s was removed from this cluster; %w; to bring the machine back start it with "+
				"another, empty data directory", answer.Server, ErrRefused)
	}
	return answer.Server, nil
}

// conflict refuses a node whose name, or address, is another's.
func (list servers) conflict(node peer.Node) error {
	for _, s := range list {
		name, sameAddress := peer.NameOf(s.ID), string(s.Address) == node.Address
		switch {
		case name == node.ID && !sameAddress:
			return fmt.Errorf("%s is a member at %s and not at %s: two machines must not have "+
				"one name; %w; `zamok remove %s` first if the one at %s is gone for good",
				name, s.Address, node.Address, ErrRefused, name, s.Address)
		case name != node.ID && sameAddress:
			return fmt.Errorf("%s is the address of %s; %w; `zamok remove %s` first if that is "+
				"gone for good", node.Address, name, ErrRefused, name)
		}
	}
	return nil
}

// addNonvoter adds a node without a vote, unless it is a member already, after removing the server
// that it replaces.
func (c *changes) addNonvoter(
	ctx context.Context, run *raftRun, node peer.Node,
	requester peer.Server) (server peer.Server, err error) {
	if err := peer.CheckID(node.ID); err != nil {
		return server, fmt.Errorf("%w; %w", err, ErrRefused)
	}
	if err := run.servers().conflict(node); err != nil {
		return server, err
	}
	// The node is asked before the change begins: a leader can't give way in one.
	if server, err = c.serverAt(ctx, run, node, requester); err != nil {
		return server, err
	}
	done, err := c.begin(ctx)
	if err != nil {
		return server, err
	}
	defer done()
	list := run.servers()
	if err := list.conflict(node); err != nil {
		return server, err
	}
	if list.has(server.ID()) {
		return server, nil
	}
	if old := list.named(server.Name); old != nil {
		if err := c.mayReplace(ctx, run, *old, server); err != nil {
			return server, err
		}
		c.log.Warn("a node lost its data directory and is replaced by the new node at its address",
			"id", server.Name, "lost", old.ID, "new", server.ID(), "peer", node.Address)
		if err := c.remove(ctx, run, *old); err != nil {
			return server, err
		}
	}
	if err := run.waitFor(ctx,
		run.raft.AddNonvoter(server.ID(), raft.ServerAddress(node.Address), 0, 0)); err != nil {
		return server, fmt.Errorf("%s was not added, or it is not known whether: %w", server, err)
	}
	return server, nil
}

// mayReplace returns why a server must not be replaced by another of its name at its address, or
// nil. The node that joins logs each reason that differs from the one before, so times in it are
// rounded.
func (c *changes) mayReplace(
	ctx context.Context, run *raftRun, old raft.Server, server peer.Server) error {
	led := run.ledSince()
	if led.IsZero() || old.ID == c.self.ID() {
		return c.proposer.notLeader()
	}
	if silent := time.Since(run.contact(old.ID, led).At); silent < replaceSilence {
		return fmt.Errorf("%s takes the place of the lost %s when that has been silent for %v, "+
			"and it is for %v; %w",
			server, old.ID, replaceSilence, silent.Truncate(10*time.Second), ErrNotYet)
	}
	// Cluster time stands still while nothing is written.
	_, now, err := c.proposer.readBarrier(ctx)
	if err != nil {
		return err
	}
	replaced := c.state.member(server.Name).Replaced
	if ago := now.Sub(replaced).Duration(); replaced != 0 && ago < replaceInterval {
		return fmt.Errorf("%s was replaced %v ago already, and is not again within %v: if two "+
			"machines run under this name, end one of them; %w",
			server.Name, ago.Truncate(time.Minute), replaceInterval, ErrNotYet)
	}
	list := run.servers()
	for _, s := range list {
		if s.ID != old.ID && s.Suffrage != raft.Voter {
			return fmt.Errorf("%s is being caught up, and one change is made at a time; %w; if "+
				"it is gone, `zamok remove %s`",
				peer.NameOf(s.ID), ErrNotYet, peer.NameOf(s.ID))
		}
	}
	if voters := len(list.voters().without(old.ID)); old.Suffrage == raft.Voter &&
		voters < replaceMin {
		return fmt.Errorf("without %s there are %d voters, and a replacement leaves at least %d; "+
			"%w; add another node first", old.ID, voters, replaceMin, ErrRefused)
	}
	return nil
}

// caughtUp waits until a server has announced itself and has nearly all entries of this leader, and
// refuses one that does not know the state machine version in force: it would end at its next
// entry.
func (c *changes) caughtUp(ctx context.Context, server peer.Server) error {
	for {
		run, err := c.runs.leading()
		if err != nil {
			return err
		}
		member, version := c.state.member(server.Name), c.state.version.Load()
		announced := member.Incarnation == fsm.Incarnation(server.Incarnation)
		has, last := run.transport.Contact(server.ID()).Acknowledged, run.raft.LastIndex()
		switch {
		case announced && (version < member.StateVersionMin || version > member.StateVersionMax):
			return fmt.Errorf("the cluster's state machine has version %d and its binary knows "+
				"%d to %d; start another release there",
				version, member.StateVersionMin, member.StateVersionMax)
		case announced && has > 0 && has+joinLagMax >= last,
			run.servers().voters().has(server.ID()):
			return nil
		}
		if ended := sleep(ctx, joinPollEvery); ended != nil {
			return fmt.Errorf("it has %d of %d entries (%w)", has, last, ended)
		}
	}
}

// promote gives a server its vote.
func (c *changes) promote(
	ctx context.Context, run *raftRun, server peer.Server, address string) error {
	done, err := c.begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	id, list := server.ID(), run.servers()
	voters := list.voters()
	switch {
	case !list.has(id):
		return fmt.Errorf("it was removed meanwhile; %w", ErrRefused)
	case voters.has(id):
		return nil
	}
	if err := c.needsLive(ctx, run, append(voters, raft.Server{ID: id})); err != nil {
		return err
	}
	if err := run.waitFor(ctx,
		run.raft.AddVoter(id, raft.ServerAddress(address), 0, 0)); err != nil {
		return err
	}
	c.log.Info("node joined", "id", server.Name, "incarnation", server.Incarnation, "peer", address)
	return nil
}

// removeNamed is Node.Remove.
func (c *changes) removeNamed(ctx context.Context, name string) error {
	run, err := c.runs.leading()
	if err != nil {
		return err
	}
	done, err := c.begin(ctx)
	if err == nil {
		defer done()
		if server := run.servers().named(name); server == nil {
			err = fmt.Errorf("%q is no member of this cluster; %w", name, ErrRefused)
		} else {
			err = c.remove(ctx, run, *server)
		}
	}
	if err != nil {
		return changeError("remove", err)
	}
	c.log.Info("node removed", "id", name)
	return nil
}

// remove removes another server, if a majority of the voters that remain answers, or hands over to
// one that can.
func (c *changes) remove(ctx context.Context, run *raftRun, server raft.Server) error {
	if server.Suffrage == raft.Voter {
		voters := run.servers().voters().without(server.ID)
		if len(voters) == 0 {
			return fmt.Errorf("%s is the only voter; %w", server.ID, ErrRefused)
		}
		if err := c.needsLive(ctx, run, voters); err != nil {
			return err
		}
	}
	if server.ID == c.self.ID() {
		return c.handover.beforeRemoval(ctx, run)
	}
	run.transport.Removing(server.ID)
	if err := run.waitFor(ctx, run.raft.RemoveServer(server.ID, 0, 0)); err != nil {
		return fmt.Errorf("%s was not removed, or it is not known whether: %w", server.ID, err)
	}
	return nil
}

// needsLive refuses a change that would leave these voters without a majority that answers: raft
// uses a configuration from the moment that it is written, so the change could not be committed.
// Only answers to appends that are sent from now on count: a node that answered a moment ago may
// have died since.
func (c *changes) needsLive(ctx context.Context, run *raftRun, voters servers) error {
	began := time.Now()
	for {
		var silent []string
		for _, s := range voters {
			if s.ID != c.self.ID() && !run.transport.Contact(s.ID).At.After(began) {
				silent = append(silent, peer.NameOf(s.ID))
			}
		}
		if 2*len(silent) < len(voters) {
			return nil
		}
		if time.Since(began) > liveWait {
			return fmt.Errorf("it would leave %d voters, and of them %v did not answer this "+
				"leader within %v: no majority; %w; bring them back first",
				len(voters), silent, liveWait, ErrRefused)
		}
		if err := sleep(ctx, c.runs.timing.timeout()/10); err != nil {
			return fmt.Errorf("%w (%w)", ErrRefused, err)
		}
	}
}

// begin begins a change of the members: one is made at a time, on the configuration that the
// previous one left.
func (c *changes) begin(ctx context.Context) (done func(), err error) {
	select {
	case c.slot <- struct{}{}:
		return func() { <-c.slot }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("another change of the members is under way; %w (%w)", ErrNotYet,
			context.Cause(ctx))
	}
}

// handleJoin adds the node that requests it, and no other: under the name that its certificate
// proves, and at an address at which the same data directory answers.
func (c *changes) handleJoin(
	ctx context.Context, run *raftRun, from peer.Server, address string) error {
	if _, err := c.runs.leading(); err != nil {
		redirect := &nodeError{Reason: err.Error()}
		if at, id := run.raft.LeaderWithID(); id != "" && id != c.self.ID() {
			redirect.Leader = peer.Node{ID: string(id), Address: string(at)}
		}
		return redirect
	}
	list, err := peer.ParseList(from.Name + "=" + address)
	if err != nil {
		return fmt.Errorf("%w; %w", err, ErrRefused)
	}
	if _, under := c.joining.LoadOrStore(from.Name, true); under {
		return fmt.Errorf("%s is being added; try again", from.Name)
	}
	added := make(chan error, 1)
	c.untilClose(func() {
		ctx, cancel := context.WithTimeout(c.life, addTimeout)
		defer cancel()
		err := c.join(ctx, list.Nodes()[0], from)
		if err != nil {
			c.rateLimitedLog.Log(slog.LevelInfo, "join "+from.Name,
				"a node that requests to join has no vote yet",
				"id", from.Name, "incarnation", from.Incarnation, "peer", address, "reason", err)
		}
		c.joining.Delete(from.Name) // before the reply: the node may request it again at once
		added <- err
	})
	ctx, cancel := context.WithTimeout(ctx, addWait)
	defer cancel()
	select {
	case err := <-added:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%s is being added; try again", from.Name)
	}
}
