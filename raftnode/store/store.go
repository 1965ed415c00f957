package store

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// A Store is the opened data of one node. Its methods and the stores that it
// hands out may be called from any goroutine.
type Store struct {
	logs      *admittedLog
	votes     *votes
	snapshots raft.SnapshotStore
	space     *space
	record    *record
	medium    medium
	writers   []fifoMutex // of both writers and of the identity; who has them all knows that nobody writes

	naming fifoMutex             // one change of the identity at a time
	known  atomic.Pointer[known] // other nodes ask for it while the disk hangs
}

// known is what the disk holds of who this node is.
type known struct {
	identity Identity
	state    State
}

// A medium is where the data is: the files of a directory, or a Memory.
type medium struct {
	logs      raft.LogStore
	logName   string // of its file or folder, for messages
	votesName string
	segmented bool // see diskLog
	votes     Table
	snapshots raft.SnapshotStore
	folders   string // the folder of the snapshots' folders; empty in memory
	// unreadable are snapshots that are damaged and not needed.
	unreadable []string
	where      string // for messages
	identity   Identity
	keep       func(Identity) error // replaces the identity, wholly or not at all
	free       func() (uint64, error)
	reusable   func() uint64 // bytes inside the log's file that deletions have freed
	settle     func() error  // notes what is known of an orderly end
	close      func() error
}

// Open opens the data of a node, and makes it if there is none. It refuses, with
// the cure, what is in use (ErrLocked), what is another node's (ErrOtherNode),
// and what is not whole (ErrLost).
func Open(cfg Config) (*Store, error) {
	cfg, err := cfg.settled()
	if err != nil {
		return nil, err
	}
	var m medium
	if cfg.Memory != nil {
		m, err = cfg.Memory.open(cfg.NodeID)
	} else {
		m, err = openDir(cfg)
	}
	if err != nil {
		return nil, err
	}
	s, err := onMedium(cfg, m)
	if err != nil {
		return nil, errors.Join(err, m.close())
	}
	return s, nil
}

// onMedium makes a store of a medium. What a library below panics upon here is damage like any other.
func onMedium(cfg Config, m medium) (s *Store, err error) {
	err = recovered(func() error {
		state, err := inspect(&m, cfg.NodeID)
		if err != nil {
			return err
		}
		if s, err = assemble(cfg, m); err == nil {
			s.known.Store(&known{m.identity, state})
		}
		return err
	})
	return s, asDamage(m.where, err)
}

// assemble puts the rules of this package on a medium, and a test's faults
// between the two.
func assemble(cfg Config, m medium) (*Store, error) {
	m = cfg.Wrap.around(m)
	record := &record{fatal: cfg.Fatal, observe: cfg.Observe}
	logPen := &serialWriter{file: m.logName, mu: newFIFOMutex(), record: record}
	votePen := &serialWriter{file: m.votesName, mu: newFIFOMutex(), record: record}
	space := &space{where: m.where, lowSpace: cfg.LowSpace, reserved: cfg.ReservedSpace, free: m.free, reusable: m.reusable}

	snapshots := m.snapshots
	if m.folders != "" {
		swept, err := newCheckedSnapshots(m.snapshots, m.folders, m.unreadable, record)
		if err != nil {
			return nil, err
		}
		snapshots = swept
	}
	snapshots = &currentSnapshots{snapshots, newFIFOMutex()}
	log := &writtenLog{LogStore: m.logs, writer: logPen, segmented: m.segmented, snapshots: snapshots, deletions: newFIFOMutex()}
	if err := log.dropStale(); err != nil {
		return nil, err
	}
	cache, err := raft.NewLogCache(LogCacheEntries, log)
	if err != nil {
		return nil, err
	}
	votes := &votes{table: m.votes, writer: votePen}
	if term, err := number(m.votes, keyCurrentTerm); err == nil {
		votes.current.Store(term)
	}
	naming := newFIFOMutex()
	return &Store{
		logs:      &admittedLog{LogCache: cache, log: log, space: space},
		votes:     votes,
		snapshots: snapshots,
		space:     space,
		record:    record,
		medium:    m,
		writers:   []fifoMutex{logPen.mu, votePen.mu, naming},
		naming:    naming,
	}, nil
}

func (w Wrap) around(m medium) medium {
	if w.Logs != nil {
		m.logs = w.Logs(m.logs)
	}
	if w.Votes != nil {
		m.votes = w.Votes(m.votes)
	}
	if w.Snapshots != nil {
		m.snapshots = w.Snapshots(m.snapshots)
	}
	if w.Free != nil {
		m.free = w.Free
	}
	return m
}

// Logs is the log for raft.NewRaft.
func (s *Store) Logs() raft.LogStore { return s.logs }

// Votes is the stable store for raft.NewRaft.
func (s *Store) Votes() raft.StableStore { return s.votes }

// Snapshots is the snapshot store for raft.NewRaft.
func (s *Store) Snapshots() raft.SnapshotStore { return s.snapshots }

// LogName is where the log is, for messages.
func (s *Store) LogName() string { return s.medium.logName }

// Identity returns who this node is, as written. It never waits for the disk.
func (s *Store) Identity() Identity { return s.known.Load().identity }

// State returns what Open found; Marked once Mark has succeeded. It never waits for the disk.
func (s *Store) State() State { return s.known.Load().state }

// RecordCluster writes down that the bootstrap, or the joining, is complete, and in which
// cluster. A zero cluster is one whose id is not known yet: Mark again when it
// is. To repeat it changes nothing; another cluster than the one written is
// refused with ErrOtherCluster, and so is, with ErrLost, a marker for neither log
// nor snapshot, because the next Open would refuse it. After any error the
// marker is as it was.
func (s *Store) RecordCluster(cluster ID) error {
	s.naming.Lock()
	defer s.naming.Unlock()
	if err := s.record.ended(); err != nil {
		return err
	}
	now := s.Identity()
	next := now
	if next.Cluster != (ID{}) && cluster != (ID{}) && next.Cluster != cluster {
		return fmt.Errorf("store: %w: the marker of %s names cluster %v, not %v; nothing was changed; "+
			"connect the node to its own cluster, or give it an empty directory to join this one",
			ErrOtherCluster, s.medium.where, next.Cluster, cluster)
	}
	next.Bootstrapped = true
	if cluster != (ID{}) {
		next.Cluster = cluster
	}
	if next == now {
		return nil
	}
	if held, err := holds(&s.medium); err != nil || !held {
		return errors.Join(err, fmt.Errorf("store: %w: %s has no log entry and no snapshot yet; it was not marked; mark it when the first entry is applied", ErrLost, s.medium.where))
	}
	if err := s.medium.keep(next); err != nil {
		return fmt.Errorf("store: the marker of %s was not written: %w; the one before it stands; mark again", s.medium.where, err)
	}
	s.known.Store(&known{next, InCluster})
	return nil
}

// Bootstrap writes down the initial members that this node agrees to begin a cluster
// with. It comes before the first entry of the log. After an error those written
// before stand.
func (s *Store) Bootstrap(founders string) error {
	return s.begin(func(next *Identity) { next.Initial, next.Cluster = founders, ID{} })
}

// Join writes down which cluster this node waits to be taken into. It comes before
// anything of that cluster is in the log, and voids what was agreed with others.
func (s *Store) Join(cluster ID) error {
	return s.begin(func(next *Identity) { next.Initial, next.Cluster = "", cluster })
}

// RecordTimeout writes down the timeout that the node starts with. After an error the one before stands.
func (s *Store) RecordTimeout(timeout uint32) error {
	s.naming.Lock()
	defer s.naming.Unlock()
	if err := s.record.ended(); err != nil {
		return err
	}
	next := s.Identity()
	if next.Timeout == timeout {
		return nil
	}
	next.Timeout = timeout
	if err := s.medium.keep(next); err != nil {
		return fmt.Errorf("store: the timeout of %s was not written: %w; the one before it stands", s.medium.where, err)
	}
	s.known.Store(&known{next, s.State()})
	return nil
}

func (s *Store) begin(change func(next *Identity)) error {
	s.naming.Lock()
	defer s.naming.Unlock()
	if err := s.record.ended(); err != nil {
		return err
	}
	next := s.Identity()
	if change(&next); next == s.Identity() {
		return nil
	}
	if held, err := holds(&s.medium); err != nil || held {
		return errors.Join(err, fmt.Errorf("store: %s holds a log or a snapshot already; nothing was changed", s.medium.where))
	}
	if err := s.medium.keep(next); err != nil {
		return fmt.Errorf("store: the identity of %s was not written: %w; nothing was begun; try again", s.medium.where, err)
	}
	s.known.Store(&known{next, s.State()})
	return nil
}

// Term is the term that this node is in, as it was last written; 0 if it was in none. It never waits for
// the disk.
func (s *Store) Term() uint64 { return s.votes.current.Load() }

// LowSpace is the free space below which Low says yes.
func (s *Store) LowSpace() uint64 { return s.space.lowSpace }

// Free returns how many bytes may still be written to the disk.
func (s *Store) Free() (uint64, error) { return s.space.free() }

// Low reports whether less than Config.Mark is free.
func (s *Store) Low() (bool, error) { return s.space.low() }

// Room says why entries are refused now (S5), or nil.
func (s *Store) Room() error { return s.space.admit(0) }

// Writing returns the write of log or vote that has been in progress for
// longest. A watchdog on another goroutine sees here a disk that hangs (S4).
func (s *Store) Writing() (InProgress, bool) { return s.record.oldest() }

// Close waits for the writes in progress, then closes the files and gives up the
// directory's lock. Raft must have ended: what it tries to write afterwards is
// refused with ErrClosed. A second Close does nothing.
func (s *Store) Close() error {
	if !s.record.close() {
		return nil
	}
	for _, t := range s.writers {
		t.Lock()
		defer t.Unlock()
	}
	var err error
	if !s.record.isBroken() {
		err = recovered(s.medium.settle)
	}
	return errors.Join(err, s.medium.close())
}
