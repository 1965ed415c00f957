package store

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"

	"github.com/hashicorp/raft"
)

const (
	// termMax is the last term that a node starts in. Elections never get there. The one after the greatest
	// uint64 would be 0, which no other node follows.
	termMax = 1 << 63
	// indexMax is the last index that a snapshot may reach.
	indexMax = 1 << 62

	// stampKey is where the log and votes.db carry the incarnation (S8).
	stampKey = "incarnation"
)

// State is what the marker and the log mean together (S9).
type State uint8

const (
	Empty     State = iota + 1 // neither log nor marker: a new node
	NoCluster                  // a log without marker: a bootstrap, or a join, that was cut short; call RecordCluster
	InCluster                  // both
)

func (s State) String() string {
	return [...]string{"no state", "empty", "unmarked", "marked"}[s]
}

// Open opens the data of a node, and makes it if there is none. It refuses, with
// the cure, what is in use (ErrLocked), what is another node's (ErrOtherNode),
// and what is not whole (ErrLost).
func Open(cfg Config) (*Store, error) {
	cfg, err := cfg.settled()
	if err != nil {
		return nil, err
	}
	s := &Store{medium: cfg.Memory, naming: newFIFOMutex(), record: newRecord(cfg)}
	if cfg.Memory == nil {
		if s.medium, err = openDirectory(cfg.Dir); err != nil {
			return nil, err
		}
	}
	if s.table, err = s.medium.openVotes(isNew(s.medium)); err != nil {
		return nil, err
	}
	// What a library below panics upon is damage like any other.
	err = recovered(func() error { return s.open(cfg) })
	if err == nil {
		return s, nil
	}
	err = asDamage(s.medium.path(""), err)
	if s.engine != nil {
		err = errors.Join(err, s.engine.close())
	}
	return nil, errors.Join(err, s.medium.close())
}

func isNew(m medium) bool {
	_, err := readIdentity(m)
	return errors.Is(err, fs.ErrNotExist)
}

// open opens everything but the votes, whose lock guards it.
func (s *Store) open(cfg Config) error {
	id, err := readIdentity(s.medium) // once more: another process may have begun the directory meanwhile
	fresh := errors.Is(err, fs.ErrNotExist)
	if err != nil && !fresh {
		return err
	}
	kind := cmp.Or(id.Log, Bolt)
	if fresh {
		kind = cmp.Or(cfg.Log, Bolt)
	}
	if cfg.Log != "" && cfg.Log != kind && cfg.Memory == nil { // the node would begin with an empty log
		return fmt.Errorf("store: %w: %s was begun with log store %q, and this start asks for %q; nothing was changed; "+
			"start it with %q, or, to change it to %q, %s",
			ErrOtherLog, s.medium.path(""), kind, cfg.Log, kind, cfg.Log, replaceNode)
	}
	if s.engine, err = s.medium.openLog(cfg, kind, fresh); err != nil {
		return err
	}
	logFile, votesFile := s.medium.path(logFiles[kind]), s.medium.path(votesName)
	files := &snapshots{medium: s.medium, record: s.record, closing: newFIFOMutex()}
	if fresh {
		if id, err = s.create(cfg.NodeID, kind, files); err != nil {
			return err
		}
	}
	names := []string{logFiles[kind], votesName}
	for i, table := range []Table{s.engine.stamps(), s.table} {
		if stamp, err := table.Get(stampKey); err != nil || !bytes.Equal(stamp, id.Incarnation[:]) {
			return s.lost("%s is from another directory", names[i])
		}
	}
	if id.Node != cfg.NodeID {
		return fmt.Errorf("store: %w: %s is node %q's, and this is node %q; nothing was changed; "+
			"give %q a directory of its own, or start it under its old name",
			ErrOtherNode, s.medium.path(""), id.Node, cfg.NodeID, cfg.NodeID)
	}
	if err := s.inspect(logFile, votesFile, files); err != nil {
		return err
	}
	if err := files.begin(); err != nil {
		return err
	}
	return s.assemble(cfg, id, logFile, votesFile, files)
}

// assemble makes what raft sees: the rules of this package, above a test's faults, above the files.
func (s *Store) assemble(cfg Config, id Identity, logFile, votesFile string, files *snapshots) (err error) {
	log, table := wrapped(cfg.Wrap.Logs, raft.LogStore(s.engine)), wrapped(cfg.Wrap.Votes, s.table)
	s.snapshots = wrapped(cfg.Wrap.Snapshots, raft.SnapshotStore(files))
	free := cfg.Wrap.Free
	if free == nil {
		free = s.medium.free
	}
	s.space = &space{
		where: s.medium.path(""), lowSpace: cfg.LowSpace, reserved: cfg.ReservedSpace,
		free: free, reusable: s.engine.reusable,
	}
	if s.votes, err = newVotes(table, serialWriter{votesFile, newFIFOMutex(), s.record}); err != nil {
		return err
	}
	s.logs = &raftLog{
		serialWriter: serialWriter{logFile, newFIFOMutex(), s.record}, deletions: newFIFOMutex(),
		engine: log, chunk: s.engine.chunk(), space: s.space, snapshots: s.snapshots,
	}
	now, err := extentOf(log)
	if err != nil {
		return err
	}
	s.logs.extent.Store(&now)
	held, err := s.holdsData()
	if err != nil {
		return err
	}
	state := Empty
	switch {
	case held && id.Bootstrapped:
		state = InCluster
	case held:
		state = NoCluster
	case id.Bootstrapped:
		return s.lost("the marker says that this node was a member of a cluster, but there is neither a log entry nor a snapshot")
	}
	s.known.Store(&known{id, state})
	return s.logs.dropStale()
}

func wrapped[T any](wrap func(T) T, inner T) T {
	if wrap == nil {
		return inner
	}
	return wrap(inner)
}

func (s *Store) lost(format string, args ...any) error {
	return lost(s.medium.path(""), fmt.Sprintf(format, args...))
}

// create makes a new node of a medium without identity. The identity is
// written last: a crash before that leaves files without data, and the next
// start begins again.
func (s *Store) create(node string, kind LogKind, files *snapshots) (id Identity, err error) {
	existing, err := raft.HasExistingState(s.engine, &votes{table: s.table}, files)
	if err != nil {
		return id, err
	}
	if existing {
		return id, s.lost("%s is missing, but there is a log, a vote or a snapshot", identityName)
	}
	id = Identity{Format: formatNow, Node: node, Incarnation: NewID()}
	if kind != Bolt {
		id.Log = kind
	}
	stamp := Pair{stampKey, id.Incarnation[:]}
	if err := errors.Join(s.engine.stamps().Put(stamp), s.table.Put(stamp)); err != nil {
		return id, err
	}
	return id, writeIdentity(s.medium, id)
}

// inspect refuses data that is damaged, or not whole.
func (s *Store) inspect(logFile, votesFile string, files *snapshots) error {
	log, err := extentOf(s.engine)
	if err != nil {
		return err
	}
	logTerm, err := inspectLog(s.engine, log)
	if err != nil {
		return Damaged(logFile, err.Error())
	}
	// Raft writes a term before the first entry of it, so votes of an earlier term are from an older
	// copy, and the node could vote twice in one term.
	term, err := numberOrZero(s.table, keyCurrentTerm) // its checksum is that of the vote, too
	switch {
	case err != nil:
		return Damaged(votesFile, err.Error())
	case term > termMax:
		return s.lost("the votes are of term %d, which no cluster reaches", term)
	case term < logTerm:
		return s.lost("the log has reached term %d, but the votes only know term %d", logTerm, term)
	}
	ids, unreadable, err := files.verify()
	if err != nil {
		return err
	}
	newest, err := newestSnapshot(files)
	switch {
	case err != nil:
		return err
	case unreadable != nil && !s.covers(log, ids[0], newest.Index):
		return unreadable
	case log.first > newest.Index+1:
		return Damaged(logFile, fmt.Sprintf("it begins with entry %d, and the newest snapshot ends with entry %d", log.first, newest.Index))
	case term < newest.Term:
		return s.lost("snapshot %s is of term %d, but the votes only know term %d", newest.ID, newest.Term, term)
	case newest.Index > indexMax:
		return s.lost("snapshot %s reaches index %d, which no log reaches", newest.ID, newest.Index)
	}
	return nil
}

// covers reports whether the log has everything between a snapshot that can be read and the last entry
// of a newer one that can't: raft continues from the older one, and would not notice what is missing
// between that and the log.
func (s *Store) covers(log extent, unreadable snapshotID, base uint64) bool {
	var last raft.Log // one of another term was to be deleted
	return log.first <= base+1 && log.has(unreadable[1]) &&
		readEntry(s.engine, unreadable[1], &last) == nil && last.Term == unreadable[0]
}

// inspectLog reads the whole log: every entry between its bounds must be there, and be what was
// written. It returns the term of the last one.
func inspectLog(log engine, all extent) (term uint64, err error) {
	err = recovered(func() error {
		for index := all.first; index <= all.last && index > 0; index++ {
			var entry raft.Log
			if err := readEntry(log, index, &entry); err != nil {
				return fmt.Errorf("entry %d of %d to %d: %w", index, all.first, all.last, err)
			}
			if entry.Term < term {
				return fmt.Errorf("entry %d is of term %d, and the one before it of term %d", index, entry.Term, term)
			}
			term = entry.Term
		}
		return nil
	})
	return term, err
}
