package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/hashicorp/raft"

	"zamok/raftnode/tail"
)

const (
	// termMax is the last term that a node starts in. Elections never get there. The one after the
	// greatest uint64 would be 0, which no other node follows.
	termMax = 1 << 63
	// indexMax is the last index that a snapshot may reach.
	indexMax = 1 << 62

	// stampKey is where votes.db carries the incarnation (S8).
	stampKey = "incarnation"
)

// Open opens the data of a node, and makes it if there is none. It refuses, with
// the cure, what is in use (ErrLocked), what is another node's (ErrOtherNode),
// and what is not whole (ErrLost).
func Open(cfg Config) (*Store, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Store{medium: cfg.Memory, naming: newFIFOMutex(),
		record: &record{fatal: cfg.Fatal, observe: cfg.Observe}}
	s.record.ctx, s.record.stop = context.WithCancelCause(context.Background())
	if cfg.Memory == nil {
		s.medium, err = openDirectory(cfg.Dir)
	} else {
		err = cfg.Memory.lock()
	}
	if err != nil {
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

// open opens everything in a medium that is locked.
func (s *Store) open(cfg Config) error {
	id, err := readIdentity(s.medium)
	fresh := errors.Is(err, fs.ErrNotExist)
	if err != nil && !fresh {
		return err
	}
	if !fresh && id.Contents != cfg.Format {
		return otherFormat(s.medium.path(""), id.Contents, cfg.Format)
	}
	if fresh {
		id = newIdentity(cfg)
	}
	table, err := s.medium.openVotes(fresh)
	if err != nil {
		return err
	}
	if s.engine, err = s.medium.openLog(id.Incarnation, fresh); err != nil {
		return err
	}
	files := &snapshots{medium: s.medium, record: s.record, completing: newFIFOMutex()}
	unreadable, damage, err := files.load()
	if err != nil {
		return err
	}
	if err := s.assemble(cfg, table, files); err != nil {
		return err
	}
	if fresh && (s.HoldsData() || damage != nil || s.votes.term() > 0) {
		return lost(s.medium, "%s is missing, but there is a log, a vote or a snapshot",
			identityName)
	}
	if err := s.stamp(table, id, fresh); err != nil {
		return err
	}
	if id.Node != cfg.NodeID {
		return fmt.Errorf("store: %w: %s is node %q's, and this is node %q; nothing was changed; "+
			"give %q a directory of its own, or start it under its old name",
			ErrOtherNode, s.medium.path(""), id.Node, cfg.NodeID, cfg.NodeID)
	}
	if err := s.inspect(unreadable, damage); err != nil {
		return err
	}
	if id.Bootstrapped && !s.HoldsData() {
		return lost(s.medium,
			"the marker says that this node was a member of a cluster, but there is neither a "+
				"log entry nor a snapshot")
	}
	// on the disk before begin writes over what is left of it
	if cut := s.engine.lost(); cut != (tail.End{}) {
		cut.Term = min(cut.Term, s.votes.term())
		if err := s.Owe(cut); err != nil {
			return err
		}
	}
	if err := s.engine.begin(); err != nil {
		return err
	}
	// the identity is written last: a crash before leaves files without data, and the next start
	// begins again
	if fresh {
		if err := writeIdentity(s.medium, id); err != nil {
			return err
		}
	}
	s.identity.Store(&id)
	if cfg.Memory == nil {
		s.logs.markDurableWhenIdle(s.engine.markDurable)
	}
	return s.DropStale()
}

func otherFormat(where, theirs, ours string) error {
	return fmt.Errorf("store: %w: log and snapshots in %s have format %s, and this binary writes "+
		"and reads format %s; nothing was changed; start the binary that wrote them (\"zamok "+
		"version\" prints the format of a binary)", ErrOtherFormat, where, theirs, ours)
}

func newIdentity(cfg Config) Identity {
	return Identity{Format: formatNow, Contents: cfg.Format, Node: cfg.NodeID, Incarnation: NewID()}
}

// stamp marks new votes as those of this directory, and checks the mark.
func (s *Store) stamp(votes Table, id Identity, fresh bool) error {
	if fresh {
		if err := votes.Put(Values{stampKey: id.Incarnation[:]}); err != nil {
			return err
		}
	}
	if values, err := votes.Values(); err != nil ||
		!bytes.Equal(values[stampKey], id.Incarnation[:]) {
		return lost(s.medium, "%s is from another directory", votesName)
	}
	return nil
}

// assemble makes what raft sees: the rules of this package, above a test's faults, above the files.
func (s *Store) assemble(cfg Config, table Table, files *snapshots) (err error) {
	s.snapshots = wrapped(cfg.Wrap.Snapshots, raft.SnapshotStore(files))
	s.space = &space{
		where: s.medium.path(""), lowSpace: cfg.LowSpace, reserved: cfg.ReservedSpace,
		free: cfg.Wrap.Free,
	}
	if s.space.free == nil {
		s.space.free = s.medium.free
	}
	votes := serialWriter{s.medium.path(votesName), newFIFOMutex(), s.record}
	if s.votes, err = newVotes(wrapped(cfg.Wrap.Votes, table), votes); err != nil {
		return Damaged(votes.file, err.Error())
	}
	s.logs = &raftLog{
		serialWriter: serialWriter{s.medium.path(logName), newFIFOMutex(), s.record},
		engine:       wrapped(cfg.Wrap.Logs, raft.LogStore(s.engine)), space: s.space,
		snapshots:   files,
		mayPostpone: cfg.Postpone, written: cfg.Written,
	}
	s.votes.log = s.logs
	now, err := extentOf(s.logs.engine)
	s.logs.extent.Store(&now)
	return err
}

func wrapped[T any](wrap func(T) T, inner T) T {
	if wrap == nil {
		return inner
	}
	return wrap(inner)
}

// inspect refuses data that is damaged, or not whole. unreadable is the newest snapshot if that is
// damaged.
func (s *Store) inspect(unreadable snapshotID, damage error) error {
	log, newest, term := *s.logs.extent.Load(), s.logs.snapshots.newest(), s.votes.term()
	logTerm, err := s.engine.inspect()
	switch {
	case err != nil:
		return Damaged(s.logs.file, err.Error())
	case term > termMax:
		return lost(s.medium, "the votes are of term %d, which no cluster reaches", term)
	case term < logTerm:
		// Raft writes a term before the first entry of it, so votes of an earlier term are from an
		// older copy, and the node could vote twice in one term.
		return lost(s.medium, "the log has reached term %d, but the votes only know term %d",
			logTerm, term)
	case damage != nil && !s.covers(log, unreadable, newest.Index):
		return damage
	case log.first > newest.Index+1:
		return Damaged(s.logs.file,
			fmt.Sprintf("it begins with entry %d, and the newest snapshot ends with entry %d",
				log.first, newest.Index))
	case term < newest.Term:
		return lost(s.medium, "snapshot %s is of term %d, but the votes only know term %d",
			newest.ID, newest.Term, term)
	case newest.Index > indexMax:
		return lost(s.medium, "snapshot %s reaches index %d, which no log reaches", newest.ID,
			newest.Index)
	}
	return nil
}

// covers reports whether the log has everything between a snapshot that can be read and the last
// entry of a newer one that can't: raft continues from the older one, and would not notice what is
// missing between that and the log.
func (s *Store) covers(log extent, unreadable snapshotID, base uint64) bool {
	var last raft.Log // one of another term was to be deleted
	return log.first <= base+1 && log.has(unreadable[1]) &&
		readEntry(s.engine, unreadable[1], &last) == nil && last.Term == unreadable[0]
}
