package raftnode

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

// Config is a node's name, data, peers and settings. ID, Fatal, Peers.Listener and one of Store.Dir
// and Store.Memory are required; each other field says what zero means.
type Config struct {
	// ID is the node's name in the cluster. To raft a server is the name together with the
	// incarnation of the data directory: a node that lost its data is another server, which
	// replaces the lost one (Node.Join).
	ID string
	// Store is where the node keeps its data. Open fills in NodeID, Fatal and Logger.
	Store store.Config
	// Peers is how it reaches the other nodes, and the list that a new cluster begins with, this
	// node among it. Without a list this node has data already, or waits until a running cluster
	// takes it in. Open fills in the rest.
	Peers peer.Config
	// Join are nodes of a running cluster. A node without data asks them which cluster that is, and
	// waits to be added (Node.Join); RequestJoin requests that. With Peers.List, too, it does so if
	// a node of that list has data, because the cluster exists already then, instead of refusing to
	// start.
	Join peer.List
	// Client, HTTP and Version are announced to the others. Empty: not announced.
	Client, HTTP, Version string
	// TokenBase is the index that a new cluster begins above, up to fsm.TokenBaseMax. Zero: 0;
	// a real cluster takes it from TokenClock, so that it is above older ones.
	TokenBase uint64

	// Versions are those of the state machine that this binary knows. Zero:
	// fsm.SupportedVersions(); tests of upgrades set others.
	Versions fsm.VersionRange

	// Applied is called for each applied entry, in the order of the log, with the state machine
	// right after it. It runs under the state machine's lock: it must not block, nor call this
	// node. Nil: not called.
	Applied func(*fsm.Machine, fsm.Applied)
	// Restored is called, likewise, when a snapshot replaced the state machine. Applied is not
	// called for the entries in the snapshot. Nil: not called.
	Restored func(*fsm.Machine)
	// Epoch is called when an epoch opens here, before its first command is accepted, and when it
	// ends, after the last was. Entries in flight then may still be applied, and answered. The
	// calls alternate, on one goroutine, and must not block for long. Nil: not called.
	Epoch func(open bool)
	// GaveWay is called when this leader gives way by itself (Moved). It is also called when this
	// leader begins to make no progress and stays, with the reason (StayedWithoutMajority and the
	// like). It must not block. Nil: not called.
	GaveWay func(outcome string)
	// Timing is called with the timing of each entry that this node proposed, usually on the
	// goroutine that applies entries: it must not block. Nil: not called.
	Timing func(ProposalTiming)

	// Fatal ends the process: the disk failed, this binary is too old, the node is stalled or its
	// state differs from a majority's. It must not return, but may end the goroutine. Required.
	Fatal func(error)
	// Logger gets what an operator should know. Nil: nothing is logged.
	Logger *slog.Logger
	// Source is this machine's elapsed time. Nil: clock.System().
	Source clock.Source

	// ElectionTimeout is raft's heartbeat and election timeout, for all nodes. Zero: the leader
	// measures what fits, 250 ms to 2 s. A follower without contact to a leader for one to two
	// times as long requests votes.
	ElectionTimeout time.Duration
	// SnapshotEntries is how many raft entries make a new snapshot worth while, and how many are
	// kept behind it for followers that lag. Zero: 4096.
	SnapshotEntries uint64
	// SnapshotEvery is how often raft checks that. Zero: 20 s.
	SnapshotEvery time.Duration
}

const (
	snapshotEntriesDefault = 4096
	snapshotEveryDefault   = 20 * time.Second
)

// withDefaults returns the config with its zeros filled in, or a ConfigError.
func (c Config) withDefaults() (Config, error) {
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	c.Versions = cmp.Or(c.Versions, fsm.SupportedVersions())
	c.SnapshotEntries = cmp.Or(c.SnapshotEntries, snapshotEntriesDefault)
	c.SnapshotEvery = cmp.Or(c.SnapshotEvery, snapshotEveryDefault)
	c.ElectionTimeout = c.ElectionTimeout.Truncate(time.Millisecond) // nodes exchange whole ones
	c.Source = cmp.Or(c.Source, clock.System())
	if c.Applied == nil {
		c.Applied = func(*fsm.Machine, fsm.Applied) {}
	}
	if c.Restored == nil {
		c.Restored = func(*fsm.Machine) {}
	}
	if c.Epoch == nil {
		c.Epoch = func(bool) {}
	}
	if c.GaveWay == nil {
		c.GaveWay = func(string) {}
	}
	if c.Timing == nil {
		c.Timing = func(ProposalTiming) {}
	}
	wrong := func(field, reason string, args ...any) (Config, error) {
		return c, &ConfigError{field, fmt.Errorf(reason, args...)}
	}
	switch err := peer.CheckID(c.ID); {
	case err != nil:
		return c, &ConfigError{"ID", err}
	case c.Peers.Listener == nil:
		return wrong("Peers.Listener", "it is nil: peers could not reach this node")
	case c.Fatal == nil:
		return wrong("Fatal", "it is nil: give a function that ends the process")
	case len(c.Peers.List.Nodes()) > 0 && !c.Peers.List.Has(c.ID):
		return wrong("Peers.List", "%v does not name this node, %s", c.Peers.List, c.ID)
	case c.TokenBase > fsm.TokenBaseMax:
		return wrong("TokenBase", "%d is above %d", c.TokenBase, uint64(fsm.TokenBaseMax))
	case c.ElectionTimeout != 0 &&
		(c.ElectionTimeout < electionMin || c.ElectionTimeout > electionMax):
		return wrong("ElectionTimeout",
			"%v is not between %v and %v: a shorter one elects on every hiccup, a longer one "+
				"leaves the cluster without a leader for too long",
			c.ElectionTimeout, electionMin, electionMax)
	case c.SnapshotEvery < time.Second:
		return wrong("SnapshotEvery", "%v is below a second", c.SnapshotEvery)
	}
	return c, nil
}

// ConfigError is what is wrong with a field of a node's configuration. Nothing was started.
type ConfigError struct {
	Field  string // as in Config, or in the configuration that has it inside: "Peers.List"
	Reason error
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("configuration: %s: %v; nothing was started", e.Field, e.Reason)
}

func (e *ConfigError) Unwrap() error { return e.Reason }

// configError names a wrong field of Store or Peers as one of Config, and returns other errors as
// they are.
func configError(err error) error {
	if wrong, ok := errors.AsType[*store.ConfigError](err); ok {
		return &ConfigError{"Store." + wrong.Field, wrong.Reason}
	}
	if wrong, ok := errors.AsType[*peer.ConfigError](err); ok {
		return &ConfigError{"Peers." + wrong.Field, wrong.Reason}
	}
	return err
}

const electionMin, electionMax = 50 * time.Millisecond, 10 * time.Second
