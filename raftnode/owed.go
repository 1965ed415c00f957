package raftnode

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/raft"

	"zamok/raftnode/peer"
	"zamok/raftnode/tail"
)

// A node that has lost the end of its log owes it (package tail). Package peer refuses its votes
// and campaigns meanwhile. What is here makes it owe nothing again: its log gets what it lost from
// a leader, or it asks the other voters.

// tailAnswer is an answer to a node that owes something; see tail.Answer.
type tailAnswer struct {
	Term   uint64
	Log    tail.End
	Leads  bool
	Voters servers
	// Leader is one that it hears. Then the answer says nothing else.
	Leader raft.ServerID `json:",omitempty"`
}

// regainTail ends what this node owes once its log reaches the owed end, and asks the others as
// long as it does not.
func (n *Node) regainTail() {
	logged := tail.End{}
	for {
		state := n.store.Tail()
		switch {
		case state.Owed == tail.End{}:
			n.owes.Store(nil)
			select {
			case <-n.owed:
				continue
			case <-n.life.Done():
				return
			}
		case !state.Owes():
			if n.store.Sink(state.Owed, tail.End{}) != nil {
				return // the process ends
			}
			n.log.Info("the log has what it had lost, or what took its place; this node votes and leads "+
				"like any other", "last_index", state.Log.Index)
			continue
		case state.Owed != logged:
			logged = state.Owed
			n.log.Warn("the log has lost its end: until it has that again, or the other voters answer that "+
				"nothing of it counts, this node does not lead, and votes only for nodes that have it",
				"last_index", state.Log.Index, "last_term", state.Log.Term,
				"owed_index", state.Owed.Index, "owed_term", state.Owed.Term)
		}
		n.askRound(state.Owed)
		if pause(n.life, n.timeout()) != nil {
			return
		}
	}
}

// askRound asks the leader, or all voters if this node hears none, and lowers what it owes if they
// have answered.
func (n *Node) askRound(owed tail.End) {
	in := n.instance.Load()
	voters, leader := in.servers().voters(), in.leader()
	toAsk := voters.without(n.self.ID())
	switch {
	case len(voters) == 0:
		return
	case len(toAsk) == 0:
		n.log.Error("ALARM: the log of the only voter has lost its end; if its last write was acknowledged, "+
			"that is lost, and locks may be granted again; unless the power failed, check the disk",
			"owed_index", owed.Index, "owed_term", owed.Term)
		_ = n.store.Sink(owed, tail.End{}) // an error ends the process
		return
	case leader != "":
		toAsk = slices.DeleteFunc(toAsk, func(s raft.Server) bool { return s.ID != leader })
	}
	var answers []tail.Answer[raft.ServerID]
	silent := map[raft.ServerID]error{}
	for known := toAsk; len(toAsk) > 0; {
		tails := n.askTails(toAsk, owed, silent)
		toAsk = nil
		for from, d := range tails {
			answers = append(answers, tail.Answer[raft.ServerID]{
				From: from, Term: d.Term, Log: d.Log, Leads: d.Leads, Voters: idsOf(d.Voters),
			})
			// What was lost may have made others voters.
			for _, s := range d.Voters.without(n.self.ID()) {
				if leader == "" && !known.has(s.ID) {
					known, toAsk = append(known, s), append(toAsk, s)
				}
			}
		}
	}
	sunk, missing := tail.Sink(owed, n.self.ID(), idsOf(voters), answers)
	if len(missing) > 0 {
		n.reportSilent(missing, silent)
		return
	}
	n.owes.Store(nil)
	if sunk != owed && n.store.Sink(owed, sunk) == nil {
		n.log.Info("a leader, or all other voters, answered that nothing above this end was committed; this "+
			"node owes no more than that",
			"owed_index", sunk.Index, "owed_term", sunk.Term)
	}
}

// reportSilent logs which voters this node waits for, and has Status and /readyz say so.
func (n *Node) reportSilent(missing []raft.ServerID, silent map[raft.ServerID]error) {
	var each []string
	for _, id := range missing {
		err := silent[id]
		if refused, is := errors.AsType[*refusal](err); is {
			err = refused // without who refused
		}
		if err != nil {
			each = append(each, fmt.Sprintf("%s: %v", peer.NameOf(id), err))
		} else {
			each = append(each, peer.NameOf(id))
		}
	}
	slices.Sort(each)
	waits := "the log of this node has lost its end; it waits for a leader, or for the answers of all of these " +
		"voters, which have to run: " + strings.Join(each, "; ")
	n.owes.Store(&waits)
	n.limitedLog.Log(slog.LevelWarn, "owes", waits)
}

// askTails asks some servers at once, and notes why some do not answer.
func (n *Node) askTails(
	all servers, owed tail.End, silent map[raft.ServerID]error) map[raft.ServerID]*tailAnswer {
	tails := map[raft.ServerID]*tailAnswer{}
	var mu sync.Mutex // guards both maps
	var asking sync.WaitGroup
	for _, s := range all {
		asking.Go(func() {
			r, err := n.query(n.life, s.ID, s.Address, call{Owed: &owed})
			switch {
			case err == nil && r.Tail == nil:
				err = errors.New("its answer is of a form that this release does not know")
			case err == nil && r.Tail.Leader != "":
				err = fmt.Errorf("it follows %s", peer.NameOf(r.Tail.Leader))
			}
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				tails[s.ID] = r.Tail
			} else {
				silent[s.ID] = err
			}
		})
	}
	asking.Wait()
	return tails
}

func idsOf(all servers) (ids []raft.ServerID) {
	for _, s := range all {
		ids = append(ids, s.ID)
	}
	return ids
}

// answerOwing answers a member that owes something. A node that hears a leader of that term, or of a
// later one, leaves the answer to that. Otherwise it enters a later term first, so it takes nothing
// more from the leader of that term.
func (n *Node) answerOwing(
	ctx context.Context, in *instance, from peer.Server, owed tail.End) (*tailAnswer, error) {
	if !n.knows(from) { // by name: it may have joined while this node was away
		return nil, fmt.Errorf("%s is no member, as far as %s knows", from.Name, n.cfg.ID)
	}
	term, leader := in.raft.CurrentTerm(), in.leader()
	leads := term >= owed.Term && in.raft.State() == raft.Leader
	if term >= owed.Term && leader != "" && leader != n.self.ID() {
		return &tailAnswer{Leader: leader}, nil
	}
	if !leads {
		if err := in.transport.RaiseTerm(ctx, owed.Term); err != nil {
			return nil, err
		}
		term = n.store.Term()
	}
	if err := n.store.WaitWritten(ctx, in.raft.LastIndex()); err != nil {
		return nil, err
	}
	d := &tailAnswer{Term: term, Log: n.store.Tail().Log, Voters: in.servers().voters()}
	if n.instance.Load() != in {
		return nil, fmt.Errorf("raft starts again on %s", n.cfg.ID)
	}
	d.Leads = leads && in.raft.State() == raft.Leader && in.raft.CurrentTerm() == term
	return d, nil
}

// makeOwe has a follower of this leader owe what it acknowledged and lost. Package peer calls it.
func (n *Node) makeOwe(ctx context.Context, server peer.Node, acknowledged tail.End) error {
	id, address := raft.ServerID(server.ID), raft.ServerAddress(server.Address)
	return n.callNode(ctx, id, address, call{Owe: &acknowledged})
}

// handleOwe makes this node owe what its leader has its acknowledgement of, unless it has that. It
// has noticed the loss by itself if it owes as much already.
func (n *Node) handleOwe(
	ctx context.Context, in *instance, from peer.Server, acknowledged tail.End) error {
	state := n.store.Tail()
	switch {
	case acknowledged.Term != in.raft.CurrentTerm():
		return errors.New("it is of another term")
	case state.Log.Reaches(acknowledged) || state.Owed.Reaches(acknowledged):
		return nil
	}
	n.log.Error("ALARM: the disk of this node lost entries that it had acknowledged, and did not notice; the "+
		"leader sends them again; if this is repeated, replace the disk", "last_index", state.Log.Index,
		"acknowledged_index", acknowledged.Index, "leader", from.Name)
	written := make(chan error, 1)
	go func() {
		written <- n.store.Owe(acknowledged)
		offer(n.owed, struct{}{})
	}()
	select {
	case err := <-written:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
