package raftnode

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"zamok/raftnode/peer"
)

const (
	// votedPollEvery is how often a leader that hands over checks for the next one.
	votedPollEvery = 5 * time.Millisecond
	// contactMin is the shortest time after which a voter that has not answered this leader counts as silent. The
	// leader sends something many times within it.
	contactMin = time.Second
	// stepAsidePause is how long a leader that stepped aside because of its disk does not do so again. It bounds how often
	// the leadership moves when disks fill up and are emptied in turn.
	stepAsidePause = time.Minute
	// stepAsideAfter is how long a leader leads before it does: the voters that answer have done so by then.
	stepAsideAfter = 5 * time.Second
)

// voter is what a leader knows of a voter.
type voter struct {
	raft.Server
	name         string
	acknowledged uint64        // up to this entry, in this term; of this node all
	silent       time.Duration // how long it has not answered this leader; 0 = it answers
	trip         time.Duration // how long it takes to answer
	free         uint64
	low          bool // free is below the low-space threshold
}

// candidates are the voters as this leader knows them: the free space that they announced, their latest answer, and how
// far their logs are.
func (in *instance) candidates() (all []voter) {
	now, since := time.Now(), in.ledSince.Load()
	announced := in.node.announced()
	for _, s := range in.servers() {
		if s.Suffrage != raft.Voter {
			continue
		}
		v := voter{Server: s, name: peer.NameOf(s.ID)}
		member := announced[v.name]
		v.free, v.low = member.FreeBytes, member.FreeBytes < member.LowSpaceThreshold
		if s.ID == in.node.self.ID() {
			v.acknowledged = in.raft.LastIndex()
			v.free, _ = in.node.store.FreeBytes()
			v.low, _ = in.node.store.IsLowSpace()
			all = append(all, v)
			continue
		}
		contact := in.transport.Contact(s.ID)
		answered := contact.At
		v.acknowledged, v.trip = contact.Acknowledged, contact.Trip
		if since != nil && since.After(answered) {
			answered = *since
		}
		if silent := now.Sub(answered); silent > max(contactMin, 2*in.lease()) {
			v.silent = silent
		}
		all = append(all, v)
	}
	return all
}

// unfitReason is why a voter should not lead next; "" = nothing.
func (v voter) unfitReason(last uint64) string {
	switch {
	case v.silent > 0:
		return fmt.Sprintf("%s has not answered for %v", v.name, v.silent.Round(time.Second))
	case v.low:
		return fmt.Sprintf("%s has a disk that is nearly full: %d MiB are free", v.name, v.free>>20)
	case v.acknowledged == 0 || v.acknowledged+joinLagMax < last:
		return fmt.Sprintf("%s is far behind: it has %d of %d entries", v.name, v.acknowledged, last)
	}
	return ""
}

// successor picks the next leader: a voter that answers, has free disk space and is not far behind, of several the one
// whose log is longest. fits excludes others; nil = none.
func (in *instance) successor(fits func(voter) bool) (best raft.Server, err error) {
	last, furthest := in.raft.LastIndex(), uint64(0)
	var against []string
	for _, v := range in.candidates() {
		if v.ID == in.node.self.ID() || fits != nil && !fits(v) {
			continue
		}
		if reason := v.unfitReason(last); reason != "" {
			against = append(against, reason)
		} else if best.ID == "" || v.acknowledged > furthest {
			best, furthest = v.Server, v.acknowledged
		}
	}
	switch {
	case best.ID != "":
		return best, nil
	case len(against) == 0:
		return best, fmt.Errorf("this is the only voter; %w", ErrRefused)
	}
	return best, fmt.Errorf("no other node is fit to lead: %s; %w; name one to hand over all the same", strings.Join(against, "; "), ErrRefused)
}

// nextLeader is the voter with this name, fit or not, or with "" the successor.
func (in *instance) nextLeader(to string) (raft.Server, error) {
	if to == "" {
		return in.successor(nil)
	}
	servers := in.servers()
	at := slices.IndexFunc(servers, func(s raft.Server) bool {
		return peer.NameOf(s.ID) == to && s.Suffrage == raft.Voter && s.ID != in.node.self.ID()
	})
	if at < 0 {
		return raft.Server{}, fmt.Errorf("%q is no other voter of this cluster; %w", to, ErrRefused)
	}
	return servers[at], nil
}

// transferTo transfers the leadership to a server. Raft then restarts on this node, whatever the result
// (hashicorp/raft#696).
func (n *Node) transferTo(ctx context.Context, in *instance, to raft.Server) error {
	err := in.waitFor(ctx, in.raft.LeadershipTransferToServer(to.ID, to.Address))
	if err == nil {
		n.voted(in)
	}
	return errors.Join(err, n.reopen(in))
}

// voted waits, for about an election, until this node knows the next leader, which may need its vote: raft closes its
// connections when it ends.
func (n *Node) voted(in *instance) {
	tick := time.NewTicker(votedPollEvery)
	defer tick.Stop()
	for began := time.Now(); time.Since(began) < in.timeout; <-tick.C {
		if _, id := in.raft.LeaderWithID(); id != "" {
			return
		}
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
	reason := noRoom(in.candidates())
	n.noRoom.Store(reason)
	since := in.ledSince.Load()
	if low, _ := n.store.IsLowSpace(); !low || reason != nil || since == nil || time.Since(*since) < stepAsideAfter || time.Since(n.steppedAside) < stepAsidePause {
		return
	}
	to, err := in.successor(nil)
	if err != nil {
		return
	}
	n.steppedAside = time.Now()
	n.log.Warn("low disk space on this leader: transferring leadership", "to", peer.NameOf(to.ID))
	n.stepAside(ctx, in, to)
}

// stepAside transfers the leadership, unless a change of the members is under way, whose outcome would be unknown.
func (n *Node) stepAside(ctx context.Context, in *instance, to raft.Server) {
	select {
	case n.membership <- struct{}{}:
		defer func() { <-n.membership }()
	default:
		return
	}
	n.checkpoint(in)
	ctx, cancel := context.WithTimeout(ctx, in.timeout+transferWait)
	defer cancel()
	if err := n.transferTo(ctx, in, to); err != nil {
		n.log.Warn("leadership transfer failed or is unconfirmed", "to", peer.NameOf(to.ID), "error", err)
	}
}

// noRoom is why nothing new is admitted; nil = it is. What is admitted has to be renewed and ended, by entries that a
// majority accepts. So the voters that have room and answer must be a majority: entries then continue when the others
// refuse them.
func noRoom(all []voter) *string {
	able, low := 0, false
	var without []string
	for _, v := range all {
		switch {
		case v.low:
			low = true
			without = append(without, fmt.Sprintf("%s has %d MiB left", v.name, v.free>>20))
		case v.silent > 0:
			without = append(without, v.name+" does not answer")
		default:
			able++
		}
	}
	if !low || 2*able > len(all) {
		return nil
	}
	reason := fmt.Sprintf("%d of %d nodes have room on their disks: %s", able, len(all), strings.Join(without, ", "))
	return &reason
}

// NoRoom is why this leader admits nothing new, as of the last second; "" = it does, or does not lead.
func (n *Node) NoRoom() string {
	reason := n.noRoom.Load()
	if reason == nil || !n.queue.isOpen() {
		return ""
	}
	return *reason
}
