package raftnode

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"time"

	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

// Config says who a node is, where it keeps its data and how it reaches the others. ID, Listener,
// Fatal and one of Dir and Memory are required; the rest has a meaning when zero.
type Config struct {
	// ID is the node's name in the cluster. To raft a node is its name and the incarnation of its data
	// directory together: one that lost its data is another server, which takes the lost one's place
	// (Node.Join).
	ID string
	// Dir is the data directory. Empty: the data lives in Memory.
	Dir    string
	Memory *store.Memory
	// Log is how Dir keeps the log. Empty: as it was begun; a new one with store.Bolt.
	Log store.LogKind

	// Cluster is the list that a new cluster begins with, this node among it. Zero: this node has
	// data already, or waits until a running cluster takes it in.
	Cluster peer.List
	// Join says what a node that holds nothing does when a node of Cluster holds data, so that the
	// cluster has begun without it: wait to be taken in, instead of refusing to start.
	Join bool
	// JoinCluster is the id of the running cluster that is to take this node in (Node.Join). Without
	// it a node that holds nothing and has no list has nothing in common with anybody. Zero: the id
	// that the data has.
	JoinCluster store.ID
	// Listener accepts peers; the node closes it.
	Listener net.Listener
	// Advertise is the address under which peers reach this node. Empty: the listener's.
	Advertise string
	// Dial connects to a peer. Nil: TCP with keepalives.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// TLS makes both ends of a peer connection show a certificate. Nil: plain.
	TLS *tls.Config

	// Client, HTTP and Version are announced to the others. Empty: not announced.
	Client, HTTP, Version string
	// TokenBase is the index that a new cluster begins above, up to fsm.TokenBaseMax. Zero: 0;
	// a real cluster takes it from TokenClock, so that it is above older ones.
	TokenBase uint64

	// Versions is what this binary knows. Zero: fsm.Known(); a test of raising them says otherwise.
	Versions fsm.VersionRange

	// Applied is called for each applied entry, in the order of the log, with the machine as it is
	// right after it. It runs under the machine's lock: it must not block, nor call this node. Nil:
	// nobody is told.
	Applied func(*fsm.Machine, fsm.Applied)
	// Restored is called, likewise, when a snapshot replaced the machine: what was applied between
	// is not told one by one. Nil: nobody is told.
	Restored func(*fsm.Machine)
	// Epoch is told that an epoch opened here, before the first command of it is taken, and that it
	// ended, after the last was. What was on its way then may still be applied, and answered. It is
	// called in turns, on one goroutine, and must not block for long. Nil: nobody is told.
	Epoch func(open bool)
	// Measure is told what each entry cost that this node led. Nil: nobody is told.
	Measure func(Measure)
	// DiskWrite is told of each write to disk. Nil: nobody is told.
	DiskWrite func(store.Write)

	// Fatal ends the process: the disk failed, this binary is too old, the node is stuck or its
	// state differs from a majority's. It must not return, but may end the goroutine. Required.
	Fatal func(error)
	// Logger is told what an operator wants to know. Nil: nobody is.
	Logger *slog.Logger
	// Source is this machine's elapsed time. Nil: clock.System().
	Source clock.Source

	// Election is raft's heartbeat and election timeout, for all nodes. Zero: the leader measures what fits,
	// 250 ms to 2 s. A follower that hears nothing for one to two times as long asks for votes.
	Election time.Duration
	// SnapshotEntries is how many raft entries make a new snapshot worth while, and how many are
	// kept behind it for followers that lag. Zero: 4096.
	SnapshotEntries uint64
	// SnapshotEvery is how often that is looked at. Zero: 20 s.
	SnapshotEvery time.Duration
	// LowSpace and Floor are the free bytes below which the node speaks up, and refuses entries. Zero:
	// the store's own.
	LowSpace, ReservedSpace uint64
	// Wrap puts a test's faults between the node and its disk. Zero: nothing.
	Wrap store.Wrap
}

const (
	snapshotEntriesDefault = 4096
	snapshotEveryDefault   = 20 * time.Second
)

// settled returns the config with its zeros filled in, or says which field is wrong.
func (c Config) settled() (Config, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Source == nil {
		c.Source = clock.System()
	}
	if c.Versions == (fsm.VersionRange{}) {
		c.Versions = fsm.SupportedVersions()
	}
	if c.Applied == nil {
		c.Applied = func(*fsm.Machine, fsm.Applied) {}
	}
	if c.Restored == nil {
		c.Restored = func(*fsm.Machine) {}
	}
	if c.Epoch == nil {
		c.Epoch = func(bool) {}
	}
	if c.Measure == nil {
		c.Measure = func(Measure) {}
	}
	c.Election = c.Election.Truncate(time.Millisecond) // nodes tell each other whole ones
	if c.SnapshotEntries == 0 {
		c.SnapshotEntries = snapshotEntriesDefault
	}
	if c.SnapshotEvery == 0 {
		c.SnapshotEvery = snapshotEveryDefault
	}
	wrong := func(field, reason string) (Config, error) {
		return c, fmt.Errorf("raftnode: %s %s; nothing was opened", field, reason)
	}
	if err := peer.CheckID(c.ID); err != nil {
		return wrong("ID", err.Error())
	}
	switch {
	case c.Listener == nil:
		return wrong("Listener", "is nil: peers could not reach this node")
	case c.Fatal == nil:
		return wrong("Fatal", "is nil: give a function that ends the process")
	case (c.Dir == "") == (c.Memory == nil):
		return wrong("Dir and Memory", "are both set or both empty: set one")
	case len(c.Cluster.Nodes()) > 0 && c.JoinCluster != (store.ID{}):
		return wrong("Cluster and JoinCluster", "are both set: a node begins a cluster or joins one")
	case len(c.Cluster.Nodes()) > 0 && !c.Cluster.Has(c.ID):
		return wrong("Cluster", fmt.Sprintf("%v does not name this node, %s", c.Cluster, c.ID))
	case c.TokenBase > fsm.TokenBaseMax:
		return wrong("TokenBase", fmt.Sprintf("is above %d", uint64(fsm.TokenBaseMax)))
	case c.Election != 0 && (c.Election < electionMin || c.Election > electionMax):
		return wrong("Election", fmt.Sprintf("is %v and not between %v and %v: a shorter one elects on every hiccup, a longer one leaves "+
			"the cluster without a leader for too long", c.Election, electionMin, electionMax))
	case c.SnapshotEvery < time.Second:
		return wrong("SnapshotEvery", "is below a second")
	}
	return c, nil
}

const electionMin, electionMax = 50 * time.Millisecond, 10 * time.Second
