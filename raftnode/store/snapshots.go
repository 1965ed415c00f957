package store

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/raft"
)

// unfinished ends the name of the folder of a snapshot that is being written.
const unfinished = ".tmp"

// checkedSnapshots are raft's file snapshots without what they leave behind (S10).
// On a full disk raft's sink gives up in the middle of cleaning up: its folder
// DIR/snapshots/…tmp stays, and so does the open file in it, which keeps the
// blocks even when the folder is removed. And nobody removes the folders of a
// process that crashed.
//
// Each snapshot has a checksum of what raft's own store keeps without one: its
// index, its term and the configuration.
type checkedSnapshots struct {
	raft.SnapshotStore
	folders    string
	unreadable []string // are not listed
	record     *record

	creating fifoMutex // one Create at a time, so that a sweep can't take a folder that has no sink yet
	mu       sync.Mutex
	open     map[string]bool // the ids of the sinks that are neither closed nor cancelled
}

// newCheckedSnapshots puts the sweep around inner, whose snapshots are in folders, and does
// the first one.
func newCheckedSnapshots(inner raft.SnapshotStore, folders string, unreadable []string, record *record) (*checkedSnapshots, error) {
	s := &checkedSnapshots{
		SnapshotStore: inner, folders: folders, unreadable: unreadable, record: record,
		creating: newFIFOMutex(), open: map[string]bool{},
	}
	return s, s.sweep()
}

// List leaves out what could not be read at the start, and what is not what its folder says: raft counts
// on the first of the list. If that is missing, the process ends (S12).
func (s *checkedSnapshots) List() (listed []*raft.SnapshotMeta, err error) {
	names, err := snapshotNames(s.SnapshotStore, s.folders) // before the list: none of these is newer than all of that
	if err != nil {
		return nil, err
	}
	names = slices.DeleteFunc(names, func(name snapshotName) bool { return slices.Contains(s.unreadable, name.id) })
	metas, err := s.SnapshotStore.List()
	for _, meta := range metas {
		if slices.Contains(s.unreadable, meta.ID) || checkMeta(s.folders, meta) != nil {
			continue
		}
		listed = append(listed, meta)
	}
	if err == nil && len(names) > 0 && (len(listed) == 0 || listed[0].Index < names[0].index) {
		err = s.record.end(Damaged(filepath.Join(s.folders, names[0].id), "meta.json can't be read, or does not fit its checksum"))
		s.record.fatal(err)
	}
	return listed, err
}

// Open opens a snapshot that is as it was written. One that is not ends the process (S12), unless it
// has just made room for newer ones.
func (s *checkedSnapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, state, err := openSnapshot(s.SnapshotStore, s.folders, id)
	if err == nil {
		return meta, state, nil
	}
	names, listErr := snapshotNames(s.SnapshotStore, s.folders)
	names = names[:min(len(names), snapshotsKept)] // any other is being deleted
	if listErr == nil && !slices.ContainsFunc(names, func(name snapshotName) bool { return name.id == id }) {
		return nil, nil, err
	}
	err = s.record.end(Damaged(filepath.Join(s.folders, id), err.Error()))
	s.record.fatal(err)
	return nil, nil, err
}

// checkName is the file of a snapshot's folder that holds the checksum.
const checkName = "check"

// checkOf is the checksum of what is known of a snapshot.
func checkOf(meta raft.SnapshotMeta) ([]byte, error) {
	text, err := json.Marshal(raft.SnapshotMeta{
		Version: meta.Version, ID: meta.ID, Index: meta.Index, Term: meta.Term,
		Configuration: meta.Configuration, ConfigurationIndex: meta.ConfigurationIndex,
	})
	return fmt.Appendf(nil, "%x\n", Checksum(text)), err
}

// openSnapshot opens a snapshot that is as it was written, or says what is wrong with it. Raft's store
// has a checksum of the state, and verifies it here.
func openSnapshot(snapshots raft.SnapshotStore, folders, id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, state, err := snapshots.Open(id)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: meta.json or state.bin: %w", errRecord, err)
	}
	if folders == "" {
		return meta, state, nil
	}
	if err = checkMeta(folders, meta); err == nil && meta.ID != id {
		err = fmt.Errorf("%w: meta.json is that of %s", errRecord, meta.ID)
	}
	if err != nil {
		return nil, nil, errors.Join(err, state.Close())
	}
	return meta, state, nil
}

// checkMeta says what is wrong with what is known of a snapshot.
func checkMeta(folders string, meta *raft.SnapshotMeta) error {
	check, err := os.ReadFile(filepath.Join(folders, meta.ID, checkName))
	info, statErr := os.Stat(filepath.Join(folders, meta.ID, "state.bin"))
	want, wantErr := checkOf(*meta)
	err = errors.Join(err, statErr, wantErr)
	if err == nil && (meta.Size != info.Size() || !bytes.Equal(check, want)) {
		err = errors.New("meta.json does not fit its checksum in " + checkName)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errRecord, err)
	}
	return nil
}

// snapshotName is what the name of a snapshot's folder tells.
type snapshotName struct {
	id                   string
	term, index, written uint64
}

// snapshotNames lists what snapshots there are, the newest first, also those that can't be read.
func snapshotNames(snapshots raft.SnapshotStore, folders string) (names []snapshotName, err error) {
	if folders == "" {
		metas, err := snapshots.List()
		for _, meta := range metas {
			names = append(names, snapshotName{id: meta.ID, term: meta.Term, index: meta.Index})
		}
		return names, err
	}
	entries, err := os.ReadDir(folders)
	for _, entry := range entries {
		name := snapshotName{id: entry.Name()}
		_, scanErr := fmt.Sscanf(name.id, "%d-%d-%d", &name.term, &name.index, &name.written)
		if entry.IsDir() && scanErr == nil && !strings.HasSuffix(name.id, unfinished) {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b snapshotName) int {
		return cmp.Or(cmp.Compare(b.term, a.term), cmp.Compare(b.index, a.index), cmp.Compare(b.written, a.written))
	})
	return names, err
}

// currentSnapshots takes no snapshot that ends before one that there is. A leader's may have been on its way for long: raft would
// take back what this node has applied, and look for entries that are in the newer snapshot only. Raft's own may be
// overtaken by a leader's while it is written: raft would take it for the latest.
type currentSnapshots struct {
	raft.SnapshotStore
	closing fifoMutex
}

func (s *currentSnapshots) Create(version raft.SnapshotVersion, index, term uint64,
	configuration raft.Configuration, configurationIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(version, index, term, configuration, configurationIndex, trans)
	if err != nil {
		return nil, err
	}
	return &currentSink{sink, s, index}, nil
}

type currentSink struct {
	raft.SnapshotSink
	store *currentSnapshots
	index uint64
}

func (s *currentSink) Close() error {
	s.store.closing.Lock()
	defer s.store.closing.Unlock()
	newest, err := newestSnapshot(s.store.SnapshotStore)
	if err == nil && s.index < newest.Index {
		err = fmt.Errorf("store: a snapshot that ends with entry %d is older than the one of this node, which ends with %d; nothing was changed", s.index, newest.Index)
	}
	if err != nil {
		return errors.Join(err, s.SnapshotSink.Cancel())
	}
	return s.SnapshotSink.Close()
}

func (s *checkedSnapshots) Create(version raft.SnapshotVersion, index, term uint64,
	configuration raft.Configuration, configurationIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	s.creating.Lock()
	defer s.creating.Unlock()
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
	return &checkedSink{SnapshotSink: sink, store: s, state: state, meta: raft.SnapshotMeta{
		Version: version, ID: sink.ID(), Index: index, Term: term, Configuration: configuration, ConfigurationIndex: configurationIndex,
	}}, nil
}

type checkedSink struct {
	raft.SnapshotSink
	store *checkedSnapshots
	state *os.File // the same that raft's sink writes, for emptying it when that fails
	meta  raft.SnapshotMeta
}

// Close completes the snapshot: its folder gets its name, and raft deletes log
// entries next. So the names in the folder are flushed too, which raft's own store
// leaves out, and before: a node that finds a folder with a name and not all of its
// files does not start if it has no other one.
func (s *checkedSink) Close() error {
	if s.state == nil {
		return nil
	}
	folder := filepath.Join(s.store.folders, s.ID()+unfinished)
	check, err := checkOf(s.meta)
	if err == nil {
		err = writeSynced(filepath.Join(folder, checkName), check)
	}
	if err := errors.Join(err, syncDir(folder)); err != nil {
		return errors.Join(err, s.Cancel())
	}
	return s.end(s.SnapshotSink.Close())
}

func (s *checkedSink) Cancel() error {
	return s.end(s.SnapshotSink.Cancel())
}

// end gives back what a failed snapshot has taken. Its file is emptied first: if
// raft has left it open, it keeps its blocks until Go's collector closes it, and
// the disk is full now. Raft ends a sink more than once.
//
// A snapshot that has its name already is whole, whatever failed later (the flush
// of the name; removing an older one), and may be the only one: it stays as it is.
func (s *checkedSink) end(failure error) error {
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

func (s *checkedSink) named() bool {
	_, err := os.Stat(filepath.Join(s.store.folders, s.ID()))
	return err == nil
}

func (s *checkedSnapshots) done(id string) error {
	s.creating.Lock()
	defer s.creating.Unlock()
	s.mu.Lock()
	delete(s.open, id)
	s.mu.Unlock()
	return s.sweep()
}

// sweep removes the unfinished folders that no sink is writing.
func (s *checkedSnapshots) sweep() error {
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

func (s *checkedSnapshots) isOpen(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[id]
}
