package raftnode

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"zamok/raftnode/peer"
)

// ErrRemoved ends the process of a node that was removed from its cluster.
var ErrRemoved = errors.New(
	"raftnode: this node was removed from its cluster, and its data directory can't come back; " +
		"to bring the machine back, start it with another, empty data directory and --join")

// roster is which servers the cluster has, as far as this node knows.
type roster struct {
	*base
	state *state
	runs  *raftRuns
	// listedAt is the index of the latest configuration that names this node, of those in its log
	// and snapshot when it was opened. Never changed; 0 = there was none.
	listedAt uint64
	// opened is the latest configuration then, together with the servers of the one before. Raft
	// says only which is the latest, and that one need not be committed. Never changed.
	opened configuration
	// of a later configuration that a known server has; nil = none
	learned atomic.Pointer[memberNames]
	awaited atomic.Pointer[[]string] // of the cluster that this node waits to join; nil = none
}

// others are the nodes that this one knows of: those of its latest configuration and of its list,
// an address once.
func (r *roster) others(run *raftRun) (others []peer.Node) {
	for _, s := range run.servers() {
		others = append(others, peer.Node{ID: peer.NameOf(s.ID), Address: string(s.Address)})
	}
	for _, node := range r.cfg.Peers.List.Nodes() {
		if !slices.ContainsFunc(others,
			func(other peer.Node) bool { return other.Address == node.Address }) {
			others = append(others, node)
		}
	}
	return slices.DeleteFunc(others, func(node peer.Node) bool { return node.ID == r.cfg.ID })
}

// configurations yields those in a log, the latest first, and then that of the latest snapshot.
func configurations(logs raft.LogStore,
	snapshots raft.SnapshotStore) iter.Seq2[configuration, error] {
	return func(yield func(configuration, error) bool) {
		first, firstErr := logs.FirstIndex()
		last, lastErr := logs.LastIndex()
		err := errors.Join(firstErr, lastErr)
		for i := last; err == nil && i >= max(first, 1); i-- {
			var l raft.Log
			err = logs.GetLog(i, &l)
			if err == nil && l.Type == raft.LogConfiguration &&
				!yield(configuration{i, raft.DecodeConfiguration(l.Data).Servers}, nil) {
				return
			}
		}
		if err == nil {
			var metas []*raft.SnapshotMeta
			if metas, err = snapshots.List(); err == nil && len(metas) > 0 {
				yield(configuration{metas[0].ConfigurationIndex, metas[0].Configuration.Servers},
					nil)
				return
			}
		}
		if err != nil {
			yield(configuration{}, err)
		}
	}
}

// read sets opened and listedAt from the configurations on this node's disk.
func (r *roster) read(logs raft.LogStore, snapshots raft.SnapshotStore) error {
	seen := 0
	for c, err := range configurations(logs, snapshots) {
		if err != nil {
			return err
		}
		if seen++; seen <= 2 {
			r.opened = configuration{max(r.opened.index, c.index),
				append(r.opened.servers, c.servers...)}
		}
		if r.listedAt == 0 && c.servers.has(r.self.ID()) {
			r.listedAt = c.index
		}
		if seen >= 2 && r.listedAt > 0 {
			break
		}
	}
	return nil
}

// namesMax bounds the names of servers that a node sends to another; a cluster has fewer.
const namesMax = 64

// memberNames are the servers of a configuration that another server has, committed or the latest
// in its log.
type memberNames struct {
	index uint64 // of the configuration, in raft
	names []string
}

// knows reports whether the cluster has a server of that name, as far as this node knows: in the
// committed configuration, in the latest, or in a later one that a known server has. (Raft acts on
// the latest, but a leader that the latest lacks leads until that is committed.) Without a
// configuration, the list of this node counts, and the members of the cluster that it waits to
// join.
func (r *roster) knows(s peer.Server) bool {
	run, committed := r.runs.latest.Load(), r.state.committed.Load()
	if run == nil {
		return true // raft does not run yet, so no request is served
	}
	latest := run.servers()
	if len(latest) == 0 && (r.cfg.Peers.List.Has(s.Name) || r.waitsFor(s.Name)) {
		return true
	}
	if latest.named(s.Name) != nil || committed.servers.named(s.Name) != nil ||
		committed.index < r.opened.index && r.opened.servers.named(s.Name) != nil {
		return true
	}
	v := r.learned.Load()
	return v != nil && v.index > committed.index && slices.Contains(v.names, s.Name)
}

// learnConfiguration remembers the members that known servers name. It is called while no leader
// lasts: a member that joined while this node was away may lead, and this node would refuse its
// calls.
func (r *roster) learnConfiguration(replies []peer.Reply) {
	cluster := peer.ClusterID(r.store.Identity().Cluster)
	latest, mine := memberNames{index: r.state.committed.Load().index},
		r.runs.latest.Load().servers()
	for _, reply := range replies {
		theirs := reply.Answer
		same := cluster != (peer.ClusterID{}) && theirs.Cluster == cluster
		// an initial member that was away since it began has the incarnations of the others
		if cluster == (peer.ClusterID{}) {
			same = mine.has(theirs.ID())
		}
		if reply.Err == nil && same && theirs.Name == reply.Node.ID && r.knows(theirs.Server) &&
			theirs.NamesAt > latest.index {
			latest = memberNames{theirs.NamesAt, theirs.Names}
		}
	}
	if latest.names != nil {
		r.learned.Store(&latest)
	}
}

// learnMembers remembers the members of the cluster that this node waits for. With TLS, only they
// may call it until it has a configuration. They are those of the latest configuration that a
// member has.
func (r *roster) learnMembers(replies []peer.Reply) {
	latest := peer.Answer{}
	for _, reply := range replies {
		if reply.Err == nil && reply.Answer.Configuration > latest.Configuration {
			latest = reply.Answer
		}
	}
	if latest.Names != nil {
		r.awaited.Store(&latest.Names)
	}
}

// waitsFor reports whether the cluster that this node waits for has a member of that name.
func (r *roster) waitsFor(name string) bool {
	names := r.awaited.Load()
	return names != nil && slices.Contains(*names, name)
}

// checkRemoved ends the process if another node knows that this node was removed. Raft does not
// notify a removed follower, which then requests votes in vain. Only a committed configuration
// counts that is later than all that name this node: an uncommitted removal may be undone, and a
// node that lags behind may not know yet that this one joined. With TLS only a known node counts:
// the list may name one that was removed itself.
func (r *roster) checkRemoved(replies []peer.Reply) {
	id, listed := r.store.Identity(), r.listedAt
	if now := r.state.committed.Load(); now.servers.has(r.self.ID()) {
		listed = max(listed, now.index)
	}
	for _, reply := range replies {
		theirs := reply.Answer
		if reply.Err == nil && id.Bootstrapped && theirs.Cluster == peer.ClusterID(id.Cluster) &&
			!theirs.Listed && theirs.Configuration > listed &&
			(r.cfg.Peers.TLS == nil || theirs.Name == reply.Node.ID && r.knows(theirs.Server)) {
			r.fatal(
				fmt.Errorf("%w (%s at %s says so: the configuration that was committed at index "+
					"%d does not name this node)",
					ErrRemoved, theirs.Name, reply.Node.Address, theirs.Configuration))
		}
	}
}

// condition describes this node's data to a node that asks.
func (r *roster) condition(asker peer.Server) peer.Condition {
	// A node with any part of a log has made promises to others. HasData is read first: initial
	// members that change afterwards are not those of a bootstrapped cluster.
	c := peer.Condition{HasData: r.store.HoldsData() || r.state.committed.Load().index > 0}
	id := r.store.Identity()
	committed := r.state.committed.Load()
	c.Member, c.Configuration, c.Listed = id.Bootstrapped, committed.index,
		committed.servers.has(asker.ID())
	named := committed
	// after a start it may be committed, and not be known to be
	if committed.index < r.opened.index {
		named = &r.opened
	}
	c.NamesAt = named.index
	for _, s := range named.servers[:min(len(named.servers), namesMax)] {
		c.Names = append(c.Names, peer.NameOf(s.ID))
	}
	c.Initial, _ = peer.ParseInitialMembers(id.Initial) // Open has validated them
	if !c.HasData {
		if err := r.store.CheckSpace(); err != nil {
			c.Unready = err.Error()
		}
	} else if run := r.runs.latest.Load(); run != nil && !run.hasReplayed() {
		c.Unready = fmt.Sprintf("replays its log: it has applied %d of %d entries",
			r.state.applied.Load(), run.raft.LastIndex())
	} else if r.store.Tail().Owes() {
		c.Unready = "owes what its log has lost"
	}
	return c
}
