package raftnode

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"zamok/fsm"
	"zamok/raftnode/peer"
)

const (
	// votedPollEvery is how often a leader that hands over checks for the next one.
	votedPollEvery = 5 * time.Millisecond
	// contactMin is the shortest time after which a voter that has not answered this leader counts
	// as silent. The leader sends something many times within it.
	contactMin = time.Second
)

// handover knows the voters, chooses the next leader among them, and transfers the leadership.
type handover struct {
	*base
	state     *state
	timing    *timing
	proposer  *proposer
	announcer *announcer
	runs      *raftRuns
}

// voter is what a leader knows of a voter.
type voter struct {
	raft.Server
	announced    fsm.Member           // zero = nothing
	acknowledged uint64               // up to this entry, in this term; of this node all
	silent       time.Duration        // how long it has not answered this leader; 0 = it answers
	trip, slow   time.Duration        // how long it takes to answer: see peer.Contact
	status       peer.HeartbeatStatus // its latest
}

func (v voter) name() string { return peer.NameOf(v.ID) }

// 0 = not announced
func (v voter) timeout() time.Duration  { return timeoutOf(v.announced.ElectionTimeout) }
func (v voter) distance() time.Duration { return v.trip }
func (v voter) slowness() time.Duration { return v.slow }
func (v voter) low() bool {
	return v.announced.FreeBytes < v.announced.LowSpaceThreshold
}

// voters are the voters as this leader knows them: what they announced, their latest response, and
// how far their logs are. The others are all but this node.
func (h *handover) voters(run *raftRun) (all, others []voter) {
	led := run.ledSince()
	for _, s := range run.servers().voters() {
		v := voter{Server: s, announced: h.state.member(peer.NameOf(s.ID)).Member}
		if s.ID == h.self.ID() {
			v.acknowledged, v.announced = run.raft.LastIndex(), h.announcer.announcement()
		} else {
			contact := run.contact(s.ID, led)
			v.acknowledged, v.trip, v.slow, v.status = contact.Acknowledged, contact.Trip,
				contact.Slow, contact.Status
			if silent := time.Since(contact.At); silent > max(contactMin, h.timing.timeout()) {
				v.silent = silent
			}
			others = append(others, v)
		}
		all = append(all, v)
	}
	return all, others
}

// unfitReason is why a voter should not lead next; "" = nothing.
func (v voter) unfitReason(last uint64) string {
	switch {
	case v.silent > 0:
		return fmt.Sprintf("%s has not answered for %v", v.name(), v.silent.Round(time.Second))
	case v.low():
		return fmt.Sprintf("%s has a disk that is nearly full: %d MiB are free", v.name(),
			v.announced.FreeBytes>>20)
	case v.acknowledged == 0 || v.acknowledged+joinLagMax < last:
		return fmt.Sprintf("%s is far behind: it has %d of %d entries", v.name(),
			v.acknowledged, last)
	}
	return ""
}

// successor picks the next leader: a voter that responds, has free disk space, is not far behind
// and has replayed its log. Of several it picks the one whose log is longest. It takes a round
// trip, or as long as an election.
func (h *handover) successor(run *raftRun) (raft.Server, error) {
	_, others := h.voters(run)
	return h.fittest(run, others,
		func(v, than voter) bool { return v.acknowledged > than.acknowledged })
}

// fittest picks the best of these voters that are fit to lead.
func (h *handover) fittest(
	run *raftRun, voters []voter, better func(v, than voter) bool) (raft.Server, error) {
	able, against := fit(voters, run.raft.LastIndex())
	return chooseSuccessor(able, against, h.unready(able), better)
}

// fit are the voters that are fit to lead, as far as this leader knows, and why the others are not.
func fit(voters []voter, last uint64) (able []voter, against []string) {
	for _, v := range voters {
		if reason := v.unfitReason(last); reason != "" {
			against = append(against, reason)
		} else {
			able = append(able, v)
		}
	}
	return able, against
}

// chooseSuccessor returns the best of the voters that are fit and could lead at once. If there is
// none, the error says what is against each.
func chooseSuccessor(able []voter, against []string, unready map[raft.ServerID]string,
	better func(v, than voter) bool) (raft.Server, error) {
	var best voter
	for _, v := range able {
		if reason := unready[v.ID]; reason != "" {
			against = append(against, v.name()+" "+reason)
		} else if best.ID == "" || better(v, best) {
			best = v
		}
	}
	switch {
	case best.ID != "":
		return best.Server, nil
	case len(against) == 0:
		return best.Server, fmt.Errorf("this is the only voter; %w", ErrRefused)
	}
	return best.Server, fmt.Errorf(
		"no other node is fit to lead: %s; %w; name one to hand over all the same",
		strings.Join(against, "; "), ErrRefused)
}

// unready queries voters why they could not lead at once: a node that was restarted acknowledges
// entries long before it has replayed its log. A voter that does not answer counts as ready.
func (h *handover) unready(voters []voter) map[raft.ServerID]string {
	ctx, cancel := context.WithTimeout(h.life, h.timing.timeout())
	defer cancel()
	var nodes []peer.Node
	for _, v := range voters {
		nodes = append(nodes, peer.Node{ID: v.name(), Address: string(v.Address)})
	}
	reasons := make(map[raft.ServerID]string)
	for _, reply := range h.network.AskAll(ctx, nodes) {
		if reply.Err == nil {
			reasons[reply.Answer.ID()] = reply.Answer.Unready
		}
	}
	return reasons
}

// order transfers the leadership to a node, fit or not, or with "" to one that is fit for it.
func (h *handover) order(ctx context.Context, name string) error {
	run, err := h.runs.leading()
	if err != nil {
		return err
	}
	var to raft.Server
	switch named := run.servers().voters().named(name); {
	case name == "":
		to, err = h.successor(run)
	case name == h.self.Name:
		err = fmt.Errorf("%s leads already; %w", name, ErrRefused)
	case named == nil:
		err = fmt.Errorf("%q is no other voter of this cluster; %w", name, ErrRefused)
	default:
		to = *named
	}
	if err != nil {
		return changeError("transfer", err)
	}
	return changeError("transfer", h.transferTo(ctx, run, to))
}

// transfer transfers the leadership to a server, or without one to any, and waits for that, for
// about an election. First it proposes an entry, so that the change of leader loses no cluster
// time. The entry has a time limit of its own: a slow entry leaves the transfer as much time as a
// fast one.
func (h *handover) transfer(ctx context.Context, run *raftRun, to raft.Server) error {
	limit := h.timing.timeout()
	// else it would not be committed in time
	if waits, _ := run.oldestWait(time.Now()); waits < limit {
		checkpoint, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if _, _, err := h.proposer.readBarrier(checkpoint); err != nil {
			h.log.Debug("could not write a checkpoint before the leadership transfer", "error", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, h.timing.timeout()+transferWait)
	defer cancel()
	if to.ID == "" {
		return run.waitFor(ctx, run.raft.LeadershipTransfer())
	}
	return run.waitFor(ctx, run.raft.LeadershipTransferToServer(to.ID, to.Address))
}

// transferTo transfers the leadership to a server. Raft then restarts on this node, whatever the
// result (hashicorp/raft#696).
func (h *handover) transferTo(ctx context.Context, run *raftRun, to raft.Server) error {
	defer h.runs.restart(run)
	if err := h.transfer(ctx, run, to); err != nil {
		return err
	}
	// Wait, for about an election, until this node knows the next leader, which may need its vote:
	// raft closes its connections when it ends.
	for began := time.Now(); sleep(h.life, votedPollEvery) == nil && run.leader() == "" &&
		time.Since(began) < h.timing.timeout(); {
	}
	return nil
}

// beforeRemoval transfers the leadership before another node removes this one. Its error names that
// node, or says why not.
func (h *handover) beforeRemoval(ctx context.Context, run *raftRun) error {
	to, err := h.successor(run)
	if err != nil {
		return fmt.Errorf("%s leads, and has to hand over first: %w", h.self.Name, err)
	}
	name := peer.NameOf(to.ID)
	if err := h.transferTo(ctx, run, to); err != nil {
		return fmt.Errorf("%s leads, and its hand-over to %s failed or is unconfirmed: %v; it "+
			"was not removed: %w", h.self.Name, name, err, ErrNotYet)
	}
	return &NotLeaderError{ID: name, Client: h.state.member(name).Client}
}

// leave transfers the leadership, if this node has it, to another node, preferably a fit one. Raft
// must end afterwards.
func (h *handover) leave(run *raftRun) {
	if run.raft.State() != raft.Leader {
		return
	}
	to, _ := h.successor(run)
	if err := h.transfer(context.Background(), run, to); err != nil {
		h.log.Info("leadership transfer failed or is unconfirmed", "error", err)
	}
}
