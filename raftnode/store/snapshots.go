package store

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/hashicorp/raft"
)

// unfinished ends the name of the folder of a snapshot that is being written.
const unfinished = ".tmp"

// sweptSnapshots are raft's file snapshots without what they leave behind (S10).
// On a full disk raft's sink gives up in the middle of cleaning up: its folder
// DIR/snapshots/…tmp stays, and so does the open file in it, which keeps the
// blocks even when the folder is removed. And nobody removes the folders of a
// process that crashed.
type sweptSnapshots struct {
	raft.SnapshotStore
	folders string

	creating turn // one Create at a time, so that a sweep can't take a folder that has no sink yet
	mu       sync.Mutex
	open     map[string]bool // the ids of the sinks that are neither closed nor cancelled
}

// sweeping puts the sweep around inner, whose snapshots are in folders, and does
// the first one.
func sweeping(inner raft.SnapshotStore, folders string) (*sweptSnapshots, error) {
	s := &sweptSnapshots{SnapshotStore: inner, folders: folders, creating: newTurn(), open: map[string]bool{}}
	return s, s.sweep()
}

func (s *sweptSnapshots) Create(version raft.SnapshotVersion, index, term uint64,
	configuration raft.Configuration, configurationIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	s.creating.take()
	defer s.creating.leave()
	sink, err := s.SnapshotStore.Create(version, index, term, configuration, configurationIndex, trans)
	if err != nil {
		return nil, errors.Join(err, s.sweep())
	}
	state, err := os.OpenFile(filepath.Join(s.folders, sink.ID()+unfinished, "state.bin"), os.O_WRONLY, 0)
	if err != nil {
		return nil, errors.Join(err, sink.Cancel(), s.sweep())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[sink.ID()] = true
	return &sweptSink{SnapshotSink: sink, store: s, state: state}, nil
}

type sweptSink struct {
	raft.SnapshotSink
	store *sweptSnapshots
	state *os.File // the same that raft's sink writes, for emptying it when that fails
}

// Close completes the snapshot: its folder gets its name, and raft deletes log
// entries next. So the names in the folder are flushed too, which raft's own store
// leaves out, and before: a node that finds a folder with a name and not all of its
// files does not start if it has no other one.
func (s *sweptSink) Close() error {
	if s.state == nil {
		return nil
	}
	if err := syncDir(filepath.Join(s.store.folders, s.ID()+unfinished)); err != nil {
		return errors.Join(err, s.Cancel())
	}
	return s.end(s.SnapshotSink.Close())
}

func (s *sweptSink) Cancel() error {
	return s.end(s.SnapshotSink.Cancel())
}

// end gives back what a failed snapshot has taken. Its file is emptied first: if
// raft has left it open, it keeps its blocks until Go's collector closes it, and
// the disk is full now. Raft ends a sink more than once.
//
// A snapshot that has its name already is whole, whatever failed later (the flush
// of the name; removing an older one), and may be the only one: it stays as it is.
func (s *sweptSink) end(failure error) error {
	if s.state == nil {
		return failure
	}
	if failure != nil && !s.named() {
		failure = errors.Join(failure, s.state.Truncate(0))
	}
	failure = errors.Join(failure, s.state.Close())
	s.state = nil
	return errors.Join(failure, s.store.done(s.ID()))
}

func (s *sweptSink) named() bool {
	_, err := os.Stat(filepath.Join(s.store.folders, s.ID()))
	return err == nil
}

func (s *sweptSnapshots) done(id string) error {
	s.creating.take()
	defer s.creating.leave()
	s.mu.Lock()
	delete(s.open, id)
	s.mu.Unlock()
	return s.sweep()
}

// sweep removes the unfinished folders that no sink is writing.
func (s *sweptSnapshots) sweep() error {
	entries, err := os.ReadDir(s.folders)
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		id, found := strings.CutSuffix(entry.Name(), unfinished)
		if found && !s.isOpen(id) {
			errs = append(errs, os.RemoveAll(filepath.Join(s.folders, entry.Name())))
		}
	}
	return errors.Join(errs...)
}

func (s *sweptSnapshots) isOpen(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[id]
}
