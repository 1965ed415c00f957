package raftnode

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"

	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

// RestoreConfig describes the data directory that a backup becomes: that of the first node of a new
// cluster. Others join it later, as they join any cluster.
type RestoreConfig struct {
	// Node is its name and the address for its peers.
	Node peer.Node
	// Dir is its data directory: missing or empty.
	Dir string
	// Above is a token that the new cluster's are above. They are always above the backup's and, by
	// this machine's clock, above those of every cluster that began before (TokenClock).
	Above uint64
	// HoldOff is how long nothing is granted; 0 = the longest lease and delay that the old cluster
	// allowed until the backup was taken. It is never less than what the sessions and delays in the
	// backup need.
	HoldOff clock.Span
}

// RestoreResult is what Restore made.
type RestoreResult struct {
	Cluster store.ID
	Index   uint64     // every token of the new cluster is above it
	HoldOff clock.Span // how long the new cluster grants nothing
}

const (
	// restoredAt is the index of the restored state in the new log, which begins behind it.
	restoredAt      = 1
	snapshotVersion = raft.SnapshotVersion(1)
	// tokenShift: a history has 2²⁰ tokens for each second of its life.
	tokenShift = 20
	// startJitterMax is the time in which a history that is made now begins. Two that are made at
	// one moment begin at different ones of 2¹⁸ moments. A new cluster needs as long until it has a
	// leader, with the default election timeout; Restore waits.
	startJitterMax = time.Second / 4
)

// Restore makes the data directory of a new cluster from a backup, before raft opens it. The old
// cluster must not run any more: its grants after the backup are not in it.
//
// The directory is valid once its snapshot is complete, which is written last but for the marker,
// and a missing marker is written at the start. After an error Dir is empty again, or the error
// says that it is not.
func Restore(backup io.Reader, r RestoreConfig) (RestoreResult, error) {
	if err := cmp.Or(peer.CheckID(r.Node.ID), mustBeEmpty(r.Dir)); err != nil {
		return RestoreResult{}, fmt.Errorf("raftnode: restore: %w; nothing was changed", err)
	}
	var fatal error
	st, err := store.Open(store.Config{NodeID: r.Node.ID, Format: fsm.Format(), Dir: r.Dir,
		Fatal: func(err error) { fatal = err }})
	if err != nil {
		return RestoreResult{}, err
	}
	if st.HoldsData() { // another process was faster
		return RestoreResult{}, errors.Join(
			fmt.Errorf("raftnode: restore: %s holds a node already; nothing was changed", r.Dir),
			st.Close())
	}
	tokens, begins := TokenClock(time.Now())
	restored, err := r.into(st, backup, tokens)
	if err = errors.Join(err, fatal, st.Close()); err != nil {
		return RestoreResult{}, errors.Join(
			fmt.Errorf("raftnode: restore: %w; no cluster was made", err), empty(r.Dir))
	}
	<-time.NewTimer(time.Until(begins)).C
	return restored, nil
}

// into writes the new history's first snapshot.
func (r RestoreConfig) into(st *store.Store, backup io.Reader,
	tokens uint64) (RestoreResult, error) {
	// The new log's terms start at the second in which it begins, above every older cluster's, so
	// that stamps keep rising. Stamps of two clusters that begin in one second differ in their
	// index.
	term := max(tokens>>tokenShift, 1)
	list, err := peer.ParseList(r.Node.ID + "=" + r.Node.Address)
	if err != nil {
		return RestoreResult{}, err
	}
	initial := peer.NewInitialMembers(list,
		map[string]peer.Incarnation{r.Node.ID: peer.Incarnation(st.Identity().Incarnation)})
	// As raft does, write a term before anything of that term.
	if err := errors.Join(st.Bootstrap(initial.String()),
		st.Votes().SetUint64([]byte("CurrentTerm"), term)); err != nil {
		return RestoreResult{}, err
	}
	alone := initial.Configuration()
	_, transport := raft.NewInmemTransport(alone.Servers[0].Address) // encodes addresses for raft
	sink, err := st.Snapshots().Create(snapshotVersion, restoredAt, term, alone, restoredAt,
		transport)
	if err != nil {
		return RestoreResult{}, err
	}
	restored := RestoreResult{Cluster: store.NewID()}
	restored.Index, restored.HoldOff, err = fsm.RewriteBackup(sink, backup, fsm.NewHistory{
		Cluster: fsm.ClusterID(restored.Cluster), AboveIndex: r.Above, Clock: tokens,
		HoldOff: r.HoldOff,
	})
	if err != nil {
		return RestoreResult{}, errors.Join(err, sink.Cancel())
	}
	if err := sink.Close(); err != nil {
		return RestoreResult{}, err
	}
	return restored, st.RecordCluster(restored.Cluster)
}

func mustBeEmpty(dir string) error {
	found, err := contents(dir)
	if len(found) > 0 {
		return fmt.Errorf("%s is not empty, it has %s in it; name a directory that is missing "+
			"or empty", dir, found[0])
	}
	return err
}

// empty removes everything from a directory that had been empty.
func empty(dir string) error {
	found, err := contents(dir)
	for _, name := range found {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, name)))
	}
	if err != nil {
		return fmt.Errorf(
			"raftnode: restore: %s is not empty now: %w; empty it before the next try", dir, err)
	}
	return nil
}

// contents are the names in a directory, which may be missing, but for that which is in the root of
// a new file system.
func contents(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	for _, e := range entries {
		if e.Name() != "lost+found" {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// TokenClock draws the moment at which a history that is made now begins, and returns it on the
// scale of tokens as well, for fsm.TokenBase: 2²⁰ for each second since 1970, so that it is above
// the tokens of every history that began before by the same clock, and issued no more than that.
//
// The history must issue nothing before that moment. A later history is then above everything that
// this one has issued until then; the operator must make sure that this one issues nothing more.
// Two that are made at one moment, on one machine or two, are some ten thousand tokens apart.
func TokenClock(now time.Time) (tokens uint64, begins time.Time) {
	begins = now.Add(rand.N(startJitterMax))
	seconds := begins.Unix()
	if seconds < 0 {
		return 1, begins // a clock that was never set
	}
	fraction := uint64(begins.Nanosecond()) << tokenShift / uint64(time.Second)
	return uint64(seconds)<<tokenShift + fraction, begins
}
