package raftnode

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"zamok/raftnode/peer"
	"zamok/raftnode/tail"
)

// A node that has lost the end of its log owes it (package tail). Package peer prevents its votes
// and campaigns meanwhile. What is here makes the node owe nothing again: its log gets what it lost
// from a leader, or the node queries the other voters.

// tailAnswer is an answer to a node that owes something; see tail.Answer.
type tailAnswer struct {
	Term   uint64
	Log    tail.End
	Leads  bool
	Voters servers
	// Leader is the one that the voter hears. If it is set, nothing else is.
	Leader raft.ServerID `json:",omitempty"`
}

// tailDebt is what this node owes, and how it gets rid of that.
type tailDebt struct {
	*base
	timing *timing
	runs   *raftRuns
	roster *roster
	wake   chan struct{}          // capacity 1: this node owes something now
	status atomic.Pointer[string] // what it waits for in order to owe nothing; nil = nothing
}

// regain ends what this node owes once its log reaches the owed end, and queries the others as
// long as it does not.
func (td *tailDebt) regain() {
	logged := tail.End{}
	for {
		state := td.store.Tail()
		switch {
		case state.Owed == tail.End{}:
			td.status.Store(nil)
			select {
			case <-td.wake:
				continue
			case <-td.life.Done():
				return
			}
		case !state.Owes():
			if td.store.Sink(state.Owed, tail.End{}) != nil {
				return // the process ends
			}
			td.log.Info("the log has what it had lost, or what took its place; this node votes "+
				"and leads like any other", "last_index", state.Log.Index)
			continue
		case state.Owed != logged:
			logged = state.Owed
			td.log.Warn(
				"the log has lost its end: until it has that again, or the other voters answer "+
					"that nothing of it counts, this node does not lead, and votes only for "+
					"nodes that have it",
				"last_index", state.Log.Index, "last_term", state.Log.Term,
				"owed_index", state.Owed.Index, "owed_term", state.Owed.Term)
		}
		td.queryVoters(state.Owed)
		if sleep(td.life, td.timing.timeout()) != nil {
			return
		}
	}
}

// queryVoters queries the leader, or all voters if this node hears none, and lowers what it owes if
// they have answered.
func (td *tailDebt) queryVoters(owed tail.End) {
	run := td.runs.latest.Load()
	voters, leader := run.servers().voters(), run.leader()
	toQuery := voters.without(td.self.ID())
	switch {
	case len(voters) == 0:
		return
	case len(toQuery) == 0:
		td.log.Error(
			"ALARM: the log of the only voter has lost its end; if its last write was "+
				"acknowledged, that is lost, and locks may be granted again; unless the power "+
				"failed, check the disk",
			"owed_index", owed.Index, "owed_term", owed.Term)
		_ = td.store.Sink(owed, tail.End{}) // an error ends the process
		return
	case leader != "":
		toQuery = slices.DeleteFunc(toQuery, func(s raft.Server) bool { return s.ID != leader })
	}
	var answers []tail.Answer[raft.ServerID]
	silent := map[raft.ServerID]error{}
	for known := toQuery; len(toQuery) > 0; {
		tails := td.queryTails(toQuery, owed, silent)
		toQuery = nil
		for from, d := range tails {
			answers = append(answers, tail.Answer[raft.ServerID]{
				From: from, Term: d.Term, Log: d.Log, Leads: d.Leads, Voters: idsOf(d.Voters),
			})
			// What was lost may have made others voters.
			for _, s := range d.Voters.without(td.self.ID()) {
				if leader == "" && !known.has(s.ID) {
					known, toQuery = append(known, s), append(toQuery, s)
				}
			}
		}
	}
	sunk, missing := tail.Sink(owed, td.self.ID(), idsOf(voters), answers)
	if len(missing) > 0 {
		td.publishSilent(missing, silent)
		return
	}
	td.status.Store(nil)
	if sunk != owed && td.store.Sink(owed, sunk) == nil {
		td.log.Info("a leader, or all other voters, answered that nothing above this end was "+
			"committed; this node owes no more than that",
			"owed_index", sunk.Index, "owed_term", sunk.Term)
	}
}

// publishSilent logs which voters this node waits for, and has Status and /readyz say so.
func (td *tailDebt) publishSilent(missing []raft.ServerID, silent map[raft.ServerID]error) {
	var each []string
	for _, id := range missing {
		err := silent[id]
		if e, ok := errors.AsType[*nodeError](err); ok {
			err = e // without the name of the node, which precedes it already
		}
		if err != nil {
			each = append(each, fmt.Sprintf("%s: %v", peer.NameOf(id), err))
		} else {
			each = append(each, peer.NameOf(id))
		}
	}
	slices.Sort(each)
	waits := "the log of this node has lost its end; it waits for a leader, or for the answers " +
		"of all of these voters, which have to run: " + strings.Join(each, "; ")
	td.status.Store(&waits)
	td.rateLimitedLog.Log(slog.LevelWarn, "owes", waits)
}

// queryTails queries some servers at once, and records why some do not reply.
func (td *tailDebt) queryTails(
	all servers, owed tail.End, silent map[raft.ServerID]error) map[raft.ServerID]*tailAnswer {
	tails := map[raft.ServerID]*tailAnswer{}
	var mu sync.Mutex // guards both maps
	var queries sync.WaitGroup
	for _, s := range all {
		queries.Go(func() {
			r, err := td.call(td.life, s.ID, s.Address, nodeRequest{TailQuery: &owed})
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
	queries.Wait()
	return tails
}

func idsOf(all servers) (ids []raft.ServerID) {
	for _, s := range all {
		ids = append(ids, s.ID)
	}
	return ids
}

// answer answers a member that owes something. A node that hears a leader of that term, or of a
// later one, leaves the answer to that. Otherwise it enters a later term first, so it takes nothing
// more from the leader of that term.
func (td *tailDebt) answer(
	ctx context.Context, run *raftRun, from peer.Server, owed tail.End) (*tailAnswer, error) {
	if !td.roster.knows(from) { // by name: it may have joined while this node was away
		return nil, fmt.Errorf("%s is no member, as far as %s knows", from.Name, td.cfg.ID)
	}
	term, leader := run.raft.CurrentTerm(), run.leader()
	leads := term >= owed.Term && run.raft.State() == raft.Leader
	if term >= owed.Term && leader != "" && leader != td.self.ID() {
		return &tailAnswer{Leader: leader}, nil
	}
	if !leads {
		if err := run.transport.RaiseTerm(ctx, owed.Term); err != nil {
			return nil, err
		}
		term = td.store.Term()
	}
	if err := td.store.WaitWritten(ctx, run.raft.LastIndex()); err != nil {
		return nil, err
	}
	d := &tailAnswer{Term: term, Log: td.store.Tail().Log, Voters: run.servers().voters()}
	if td.runs.latest.Load() != run {
		return nil, fmt.Errorf("raft starts again on %s", td.cfg.ID)
	}
	d.Leads = leads && run.raft.State() == raft.Leader && run.raft.CurrentTerm() == term
	return d, nil
}

// makeOwe has a follower of this leader owe what it acknowledged and lost. Package peer calls it.
func (td *tailDebt) makeOwe(ctx context.Context, server peer.Node, acknowledged tail.End) error {
	id, address := raft.ServerID(server.ID), raft.ServerAddress(server.Address)
	_, err := td.call(ctx, id, address, nodeRequest{Owe: &acknowledged})
	return err
}

// handleOwe makes this node owe what it has acknowledged to its leader, unless its log has that. A
// node that owes as much already has detected the loss by itself.
func (td *tailDebt) handleOwe(
	ctx context.Context, run *raftRun, from peer.Server, acknowledged tail.End) error {
	state := td.store.Tail()
	switch {
	case acknowledged.Term != run.raft.CurrentTerm():
		return errors.New("it is of another term")
	case state.Log.Reaches(acknowledged) || state.Owed.Reaches(acknowledged):
		return nil
	}
	td.log.Error(
		"ALARM: the disk of this node lost entries that it had acknowledged, and did not notice; "+
			"the leader sends them again; if this is repeated, replace the disk", "last_index",
		state.Log.Index,
		"acknowledged_index", acknowledged.Index, "leader", from.Name)
	written := make(chan error, 1)
	go func() {
		written <- td.store.Owe(acknowledged)
		offer(td.wake, struct{}{})
	}()
	select {
	case err := <-written:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
