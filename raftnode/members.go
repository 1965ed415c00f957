package raftnode

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"zamok/fsm"
	"zamok/raftnode/peer"
)

const (
	// joinNear is how close to the leader's index a newcomer must be to become a voter.
	joinNear = 100
	// joinLook is how often that is looked at.
	joinLook = 100 * time.Millisecond
)

// Server is a node in raft's configuration.
type Server struct {
	ID, Peer string
	Voter    bool
}

// Servers lists raft's configuration as this node knows it.
func (n *Node) Servers() []Server {
	in := n.running()
	if in == nil {
		return nil
	}
	var servers []Server
	for _, s := range in.raft.GetConfiguration().Configuration().Servers {
		servers = append(servers, Server{string(s.ID), string(s.Address), s.Suffrage == raft.Voter})
	}
	return servers
}

// Join takes a node into the cluster: first without a vote, then, once it has nearly caught up, with
// one. It is asked of the leader. When ctx ends in between, the node stays without a vote, and
// Join may be asked again.
func (n *Node) Join(ctx context.Context, node peer.Node) error {
	in, err := n.leading()
	if err != nil {
		return err
	}
	if err := peer.CheckID(node.ID); err != nil {
		return fmt.Errorf("raftnode: join: %w; %w", err, ErrRefused)
	}
	if err := n.mayJoin(in, node); err != nil {
		return err
	}
	id, address := raft.ServerID(node.ID), raft.ServerAddress(node.Address)
	if err := in.waitFor(ctx, in.raft.AddNonvoter(id, address, 0, 0)); err != nil {
		return fmt.Errorf("raftnode: join: %s was not added, or it is not known whether: %w", node.ID, err)
	}
	for {
		index, err := n.appliedAt(ctx, node)
		var mine uint64
		n.state.view(func(m *fsm.Machine) { mine = m.Stamp().Index })
		if err == nil && index+joinNear >= mine {
			if err := n.knowsRules(node.ID); err != nil {
				return fmt.Errorf("raftnode: join: %s was added without a vote and gets none: %w", node.ID, err)
			}
			break
		}
		pause := time.NewTimer(joinLook)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			where := fmt.Sprintf("it is at %d of %d", index, mine)
			if err != nil {
				where = err.Error()
			}
			return fmt.Errorf("raftnode: join: %s was added without a vote and has not caught up yet (%s; %w); ask again, or remove it",
				node.ID, where, context.Cause(ctx))
		}
	}
	if err := in.waitFor(ctx, in.raft.AddVoter(id, address, 0, 0)); err != nil {
		return fmt.Errorf("raftnode: join: %s has no vote yet, or it is not known whether: %w", node.ID, err)
	}
	n.log.Info("a node joined", "id", node.ID, "peer", node.Address)
	return nil
}

// mayJoin refuses an id that was used before: whoever bore it made promises that a newcomer does
// not know.
func (n *Node) mayJoin(in *instance, node peer.Node) error {
	for _, s := range in.raft.GetConfiguration().Configuration().Servers {
		switch {
		case string(s.ID) != node.ID:
		case string(s.Address) == node.Address:
			return nil // a joining that was begun, or nothing new
		default:
			return fmt.Errorf("raftnode: join: %s is a node already, at %s and not %s; %w; remove it first if that is wrong",
				node.ID, s.Address, node.Address, ErrRefused)
		}
		if string(s.Address) == node.Address {
			return fmt.Errorf("raftnode: join: %s is the address of %s; %w; remove %s first", node.Address, s.ID, ErrRefused, s.ID)
		}
	}
	var used bool
	n.state.view(func(m *fsm.Machine) { _, used = m.Member(node.ID) })
	if used {
		return fmt.Errorf("raftnode: join: %s was a member before; %w; give the node an id that was never used", node.ID, ErrRefused)
	}
	return nil
}

// knowsRules refuses a newcomer that would have to end at its first entry. One that has not said what
// it knows is taken at its applied index: it has got this far under the present rules.
func (n *Node) knowsRules(id string) (err error) {
	n.state.view(func(m *fsm.Machine) {
		member, said := m.Member(id)
		if rules := m.Rules(); said && (rules < member.RulesMin || rules > member.RulesMax) {
			err = fmt.Errorf("the cluster lives under rules %d and its binary knows %d to %d; start another version there",
				rules, member.RulesMin, member.RulesMax)
		}
	})
	return err
}

// RaiseRules raises the machine's rules by one, which no way leads back from. Every server, also one
// without a vote, must have announced that its binary knows them.
func (n *Node) RaiseRules(ctx context.Context) (rules uint32, err error) {
	in, err := n.leading()
	if err != nil {
		return 0, err
	}
	servers := in.raft.GetConfiguration().Configuration().Servers
	n.state.view(func(m *fsm.Machine) {
		rules = m.Rules() + 1
		for _, s := range servers {
			if member, _ := m.Member(string(s.ID)); member.RulesMax < rules {
				err = fmt.Errorf("raftnode: %s has not announced that it knows rules %d; %w; upgrade it first", s.ID, rules, ErrRefused)
			}
		}
	})
	if err != nil {
		return 0, err
	}
	a, err := n.Propose(ctx, &fsm.SetRules{Rules: rules})
	if err == nil && a.Result.Code != fsm.OK {
		err = fmt.Errorf("raftnode: the rules were raised by somebody else meanwhile; look and ask again")
	}
	return rules, err
}

// Remove takes a node out of the cluster. A node that lost its disk is removed before its successor
// starts under another id.
func (n *Node) Remove(ctx context.Context, id string) error {
	in, err := n.leading()
	if err != nil {
		return err
	}
	if err := in.waitFor(ctx, in.raft.RemoveServer(raft.ServerID(id), 0, 0)); err != nil {
		return fmt.Errorf("raftnode: remove: %s was not removed, or it is not known whether: %w", id, err)
	}
	n.log.Info("a node was removed", "id", id)
	return nil
}

// Transfer hands the leadership to a node, or to any with "". This node's raft then ends and starts
// anew, whatever came of it (hashicorp/raft#696).
func (n *Node) Transfer(ctx context.Context, to string) error {
	in, err := n.leading()
	if err != nil {
		return err
	}
	n.checkpoint()
	var future raft.Future
	if to == "" {
		future = in.raft.LeadershipTransfer()
	} else {
		var address raft.ServerAddress
		for _, s := range in.raft.GetConfiguration().Configuration().Servers {
			if string(s.ID) == to && s.Suffrage == raft.Voter {
				address = s.Address
			}
		}
		if address == "" || to == n.cfg.ID {
			return fmt.Errorf("raftnode: transfer: %q is no other voter of this cluster; %w", to, ErrRefused)
		}
		future = in.raft.LeadershipTransferToServer(raft.ServerID(to), address)
	}
	err = in.waitFor(ctx, future)
	return errors.Join(err, n.reopen(in))
}

// reopen replaces raft, unless somebody else has, or the node is closing.
func (n *Node) reopen(old *instance) error {
	n.changing <- struct{}{}
	defer func() { <-n.changing }()
	if n.running() != old {
		return nil
	}
	n.exchangeInstance(nil)
	if err := old.stop(); err != nil {
		n.log.Warn("raft ended with an error", "error", err)
	}
	in, err := n.newInstance(nil)
	if err != nil {
		n.fatal(fmt.Errorf("raftnode: raft did not start again after a transfer: %w", err))
	}
	n.exchangeInstance(in)
	return nil
}

// leading returns the running raft if this node's office is open.
func (n *Node) leading() (*instance, error) {
	in := n.running()
	if in == nil || !n.queue.isOpen() {
		return nil, n.notLeader()
	}
	return in, nil
}

// checkpoint lets an entry leave now, so that a change of leader loses no cluster time.
func (n *Node) checkpoint() {
	ctx, cancel := context.WithTimeout(context.Background(), n.cfg.Election)
	defer cancel()
	if _, _, err := n.Fence(ctx); err != nil {
		n.log.Debug("no checkpoint before the change of leader", "error", err)
	}
}

// waitFor waits for a future of raft, or for ctx: then its outcome is unknown.
func (in *instance) waitFor(ctx context.Context, future raft.Future) error {
	done := make(chan error, 1)
	go func() { done <- answeredBy(in.over, future).Error() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w (%w)", ErrUnknown, context.Cause(ctx))
	}
}
