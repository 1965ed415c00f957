package raftnode

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"

	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

// Restoration says what a backup becomes: the data directory of the one node that a new cluster begins
// with. Others join it later, as they join any cluster.
type Restoration struct {
	// Node is who it will be, and where its peers will reach it.
	Node peer.Node
	// Dir is its data directory: missing, or empty.
	Dir string
	// Log is how it keeps its log. Empty: with store.Bolt.
	Log store.LogKind
	// Above is a token above which the new cluster's are to be. They are always above the backup's and, by this
	// machine's clock, above those of every cluster that began before (TokenClock).
	Above uint64
	// HoldOff is for how long nothing is granted; 0 = the longest lease and delay that there can be. It is
	// never less than the backup's own longest.
	HoldOff clock.Span
}

// Restored is what Restore made.
type Restored struct {
	Cluster store.ID
	Index   uint64 // every token of the new cluster is above it
}

const (
	// restoredAt is the place of the restored state in the new log, which has nothing before it.
	restoredAt      = 1
	snapshotVersion = raft.SnapshotVersion(1)
)

// Restore makes the data directory of a new cluster from a backup, before any raft sees it. The cluster
// of the backup must be dead: what was granted there after the backup is not known here.
//
// The directory counts from the moment its snapshot is complete, which comes last but for the marker,
// and a marker that is missing is written at the start. After an error Dir is empty again, or the error
// says that it is not.
func Restore(backup io.Reader, r Restoration) (Restored, error) {
	if err := peer.CheckID(r.Node.ID); err != nil {
		return Restored{}, fmt.Errorf("raftnode: restore: %w; nothing was changed", err)
	}
	if err := mustBeEmpty(r.Dir); err != nil {
		return Restored{}, err
	}
	var fatal error
	st, err := store.Open(store.Config{NodeID: r.Node.ID, Dir: r.Dir, Log: r.Log, Fatal: func(err error) { fatal = err }})
	if err != nil {
		return Restored{}, err
	}
	if st.State() != store.Empty { // somebody else was at it meanwhile
		return Restored{}, errors.Join(fmt.Errorf("raftnode: restore: %s holds a node already; nothing was changed", r.Dir), st.Close())
	}
	tokens, begins := TokenClock(time.Now())
	restored, err := r.into(st, backup, tokens)
	if err = errors.Join(err, fatal, st.Close()); err != nil {
		return Restored{}, errors.Join(fmt.Errorf("raftnode: restore: %w; no cluster was made", err), empty(r.Dir))
	}
	<-time.NewTimer(time.Until(begins)).C
	return restored, nil
}

// into writes the new history's first snapshot.
func (r Restoration) into(st *store.Store, backup io.Reader, tokens uint64) (Restored, error) {
	// The new log's terms continue from the second in which it begins, above every older cluster's, so that stamps go
	// on rising too. Stamps of two that begin in one second differ in their index.
	term := max(tokens>>tokenShift, 1)
	list, err := peer.ParseList(r.Node.ID + "=" + r.Node.Address)
	if err != nil {
		return Restored{}, err
	}
	founders := peer.NewInitialMembers(list, map[string]peer.Incarnation{r.Node.ID: peer.Incarnation(st.Identity().Incarnation)})
	// Raft writes a term before anything of that term.
	if err := errors.Join(st.Bootstrap(founders.String()), st.Votes().SetUint64([]byte("CurrentTerm"), term)); err != nil {
		return Restored{}, err
	}
	alone := founders.Configuration()
	_, transport := raft.NewInmemTransport(alone.Servers[0].Address) // raft has it write addresses down
	sink, err := st.Snapshots().Create(snapshotVersion, restoredAt, term, alone, restoredAt, transport)
	if err != nil {
		return Restored{}, err
	}
	restored := Restored{Cluster: store.NewID()}
	restored.Index, err = fsm.RewriteBackup(sink, backup, fsm.NewHistory{
		Cluster: fsm.ClusterID(restored.Cluster), AboveIndex: r.Above, Clock: tokens, HoldOff: r.HoldOff,
	})
	if err != nil {
		return Restored{}, errors.Join(err, sink.Cancel())
	}
	if err := sink.Close(); err != nil {
		return Restored{}, err
	}
	return restored, st.RecordCluster(restored.Cluster)
}

// lostAndFoundDir is what a file system of its own begins with.
const lostAndFoundDir = "lost+found"

func mustBeEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if e.Name() != lostAndFoundDir {
			return fmt.Errorf("raftnode: restore: %s is not empty, it has %s in it; nothing was changed; name a directory that is missing or empty",
				dir, e.Name())
		}
	}
	return err
}

// empty removes what was written into a directory that had been empty.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if e.Name() != lostAndFoundDir {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	if err != nil {
		return fmt.Errorf("raftnode: restore: %s is not empty now: %w; empty it before the next try", dir, err)
	}
	return nil
}
