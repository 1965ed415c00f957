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
	// contactMin is the shortest time after which a voter that has not answered this leader counts as silent. The
	// leader sends something many times within it.
	contactMin = time.Second
	// stepAsideAfter is how long a leader leads before it does: the voters that answer have done so by then.
	stepAsideAfter = 5 * time.Second
)

// voter is what a leader knows of a voter.
type voter struct {
	raft.Server
	announced    fsm.Member    // zero = nothing
	acknowledged uint64        // up to this entry, in this term; of this node all
	silent       time.Duration // how long it has not answered this leader; 0 = it answers
	trip, slow   time.Duration // how long it takes to answer: see peer.Contact
	report       peer.Report   // its latest
}

func (v voter) name() string            { return peer.NameOf(v.ID) }
func (v voter) timeout() time.Duration  { return timeoutOf(v.announced.ElectionTimeout) } // 0 = not announced
func (v voter) distance() time.Duration { return v.trip }
func (v voter) slowness() time.Duration { return v.slow }
func (v voter) low() bool               { return v.announced.FreeBytes < v.announced.LowSpaceThreshold }

// voters are the voters as this leader knows them: what they announced, their latest answer, and how far their logs are.
// The others are those but this node.
func (in *instance) voters() (all, others []voter) {
	n, led := in.node, in.led()
	for _, s := range in.servers().voters() {
		v := voter{Server: s, announced: n.member(peer.NameOf(s.ID)).Member}
		if s.ID == n.self.ID() {
			v.acknowledged, v.announced = in.raft.LastIndex(), n.announcement(in)
		} else {
			contact := in.contact(s.ID, led)
			v.acknowledged, v.trip, v.slow, v.report = contact.Acknowledged, contact.Trip, contact.Slow, contact.Report
			if silent := time.Since(contact.At); silent > max(contactMin, n.timeout()) {
				v.silent = silent
			}
			others = append(others, v)
		}
		all = append(all, v)
	}
	return all, others
}

// contact is this leader's contact with another server. One that has not answered since this node began to lead counts as
// if it had then, with an unknown log.
func (in *instance) contact(id raft.ServerID, led time.Time) peer.Contact {
	c := in.transport.Contact(id)
	if !c.At.After(led) {
		c.At, c.LastLog = led, 0
	}
	return c
}

// unfitReason is why a voter should not lead next; "" = nothing.
func (v voter) unfitReason(last uint64) string {
	switch {
	case v.silent > 0:
		return fmt.Sprintf("%s has not answered for %v", v.name(), v.silent.Round(time.Second))
	case v.low():
		return fmt.Sprintf("%s has a disk that is nearly full: %d MiB are free", v.name(), v.announced.FreeBytes>>20)
	case v.acknowledged == 0 || v.acknowledged+joinLagMax < last:
		return fmt.Sprintf("%s is far behind: it has %d of %d entries", v.name(), v.acknowledged, last)
	}
	return ""
}

// successor picks the next leader: a voter that answers, has free disk space, is not far behind and replays no log, of several
// the one whose log is longest; no server = none. It takes a round trip, or as long as an election.
func (in *instance) successor() (raft.Server, error) {
	_, others := in.voters()
	return in.fittest(others, func(v, than voter) bool { return v.acknowledged > than.acknowledged })
}

// fittest picks the best of these voters that are fit to lead.
func (in *instance) fittest(voters []voter, better func(v, than voter) bool) (raft.Server, error) {
	last := in.raft.LastIndex()
	var best voter
	var against []string
	var able []voter
	for _, v := range voters {
		if reason := v.unfitReason(last); reason != "" {
			against = append(against, reason)
		} else {
			able = append(able, v)
		}
	}
	unready := in.unready(able)
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
	return best.Server, fmt.Errorf("no other node is fit to lead: %s; %w; name one to hand over all the same", strings.Join(against, "; "), ErrRefused)
}

// unready asks voters why they could not lead at once: one whose process was restarted acknowledges entries long before it has
// replayed its log. A voter that does not answer is taken for ready.
func (in *instance) unready(voters []voter) map[raft.ServerID]string {
	ctx, cancel := context.WithTimeout(in.node.life, in.node.timeout())
	defer cancel()
	var nodes []peer.Node
	for _, v := range voters {
		nodes = append(nodes, peer.Node{ID: v.name(), Address: string(v.Address)})
	}
	reasons := make(map[raft.ServerID]string)
	for _, reply := range in.node.network.AskAll(ctx, nodes) {
		if reply.Err == nil {
			reasons[reply.Answer.ID()] = reply.Answer.Unready
		}
	}
	return reasons
}

// Transfer transfers the leadership to a node, fit or not, or with "" to one that is fit for it.
func (n *Node) Transfer(ctx context.Context, name string) error {
	in, err := n.leading()
	if err != nil {
		return err
	}
	var to raft.Server
	switch named := in.servers().voters().named(name); {
	case name == "":
		to, err = in.successor()
	case name == n.cfg.ID:
		err = fmt.Errorf("%s leads already; %w", name, ErrRefused)
	case named == nil:
		err = fmt.Errorf("%q is no other voter of this cluster; %w", name, ErrRefused)
	default:
		to = *named
	}
	if err != nil {
		return fmt.Errorf("raftnode: transfer: %w", err)
	}
	return n.transferTo(ctx, in, to)
}

// transfer transfers the leadership to a server, or without one to any, and waits for that, for about an election. First it
// proposes an entry, so that the change of leader loses no cluster time, with a time limit of its own: if that is slow, the
// transfer has no less.
func (in *instance) transfer(ctx context.Context, to raft.Server) error {
	limit := in.node.timeout()
	if waits, _ := in.oldestWait(time.Now()); waits < limit { // else it would not be committed in time
		checkpoint, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if _, _, err := in.node.ReadBarrier(checkpoint); err != nil {
			in.node.log.Debug("could not write a checkpoint before the leadership transfer", "error", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, in.node.timeout()+transferWait)
	defer cancel()
	if to.ID == "" {
		return in.waitFor(ctx, in.raft.LeadershipTransfer())
	}
	return in.waitFor(ctx, in.raft.LeadershipTransferToServer(to.ID, to.Address))
}

// transferTo transfers the leadership to a server. Raft then restarts on this node, whatever the result
// (hashicorp/raft#696).
func (n *Node) transferTo(ctx context.Context, in *instance, to raft.Server) error {
	defer n.reopen(in)
	if err := in.transfer(ctx, to); err != nil {
		return err
	}
	// Wait, for about an election, until this node knows the next leader, which may need its vote: raft closes its
	// connections when it ends.
	for began := time.Now(); pause(n.life, votedPollEvery) == nil && in.leader() == "" && time.Since(began) < n.timeout(); {
	}
	return nil
}

// handOver transfers the leadership before another node removes this one. Its error names that node, or says why not.
func (n *Node) handOver(ctx context.Context, in *instance) error {
	to, err := in.successor()
	if err != nil {
		return fmt.Errorf("%s leads, and has to hand over first: %w", n.cfg.ID, err)
	}
	name := peer.NameOf(to.ID)
	if err := n.transferTo(ctx, in, to); err != nil {
		return fmt.Errorf("%s leads, and its hand-over to %s failed or is unconfirmed: %v; it was not removed: %w", n.cfg.ID, name, err, ErrNotYet)
	}
	return &NotLeaderError{ID: name, Client: n.member(name).Client}
}

// leave transfers the leadership, if this node has it, to another node, preferably a fit one. Raft must end afterwards.
func (in *instance) leave() {
	if in.raft.State() != raft.Leader {
		return
	}
	to, _ := in.successor()
	if err := in.transfer(context.Background(), to); err != nil {
		in.node.log.Info("leadership transfer failed or is unconfirmed", "error", err)
	}
}

// checkFreeSpace decides whether this leader admits new sessions and acquisitions, and steps aside if its own disk is
// nearly full while a majority has room: it would be the first to refuse entries.
func (n *Node) checkFreeSpace(ctx context.Context) {
	in, err := n.leading()
	if err != nil {
		n.noRoom.Store(nil)
		return
	}
	all, _ := in.voters()
	reason, led := noRoom(all), in.led()
	n.noRoom.Store(&reason)
	if !n.store.IsLowSpace() || reason != "" || led.IsZero() || time.Since(led) < stepAsideAfter {
		return
	}
	n.giveWay(ctx, in, in.successor, "cause", "its disk is nearly full")
}

// noRoom is why nothing new is admitted; "" = it is. What is admitted has to be renewed and ended, by entries that a
// majority accepts. So the voters that have room and answer must be a majority: entries then continue when the others
// refuse them.
func noRoom(all []voter) string {
	able, low := 0, false
	var without []string
	for _, v := range all {
		switch {
		case v.low():
			low = true
			without = append(without, fmt.Sprintf("%s has %d MiB left", v.name(), v.announced.FreeBytes>>20))
		case v.silent > 0:
			without = append(without, v.name()+" does not answer")
		default:
			able++
		}
	}
	if !low || 2*able > len(all) {
		return ""
	}
	return fmt.Sprintf("%d of %d nodes have room on their disks: %s", able, len(all), strings.Join(without, ", "))
}

// NoRoom is why this leader admits nothing new, as of the last second; "" = it does, or does not lead.
func (n *Node) NoRoom() string {
	if reason := n.noRoom.Load(); reason != nil && n.queue.open.Load() {
		return *reason
	}
	return ""
}
