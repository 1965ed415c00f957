package store

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path"
	"slices"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// snapshotsKept: the newest, and the one before it should the newest turn out to be unreadable.
const snapshotsKept = 2

// snapshots implements raft.SnapshotStore. A snapshot is one file: the state, then what is known of it
// (snapshotMeta) as JSON, then the length and the checksum of that. The file appears when it is complete
// (S10).
//
// Raft's own FileSnapshotStore has no checksum of index, term and configuration, does not flush the
// names of its files, and leaves a folder and an open file behind when the disk is full.
type snapshots struct {
	medium
	record     *record
	unreadable []snapshotID // damaged and not needed: not listed
	closing    fifoMutex    // completes one snapshot at a time
	begun      atomic.Uint64
}

// A snapshotID is a snapshot's term, index, and a number that tells apart those of one index. Later
// snapshots are greater.
type snapshotID [3]uint64

func (id snapshotID) String() string   { return fmt.Sprintf("%d-%d-%d", id[0], id[1], id[2]) }
func (id snapshotID) fileName() string { return path.Join(snapshotFolder, id.String()) }

// parseSnapshotID returns another id for what is not one.
func parseSnapshotID(text string) (id snapshotID) {
	fmt.Sscanf(text, "%d-%d-%d", &id[0], &id[1], &id[2])
	return id
}

// A snapshotMeta is what is known of a snapshot.
type snapshotMeta struct {
	raft.SnapshotMeta
	Checksum uint32 // of the state
}

const snapshotTrailer = 4 + ChecksumBytes // the length of the metadata, and the checksum of both

// ids lists the snapshots, the newest first, also those that can't be read.
func (s *snapshots) ids() (ids []snapshotID, err error) {
	names, err := s.list(snapshotFolder)
	for _, name := range names {
		if id := parseSnapshotID(name); id.String() == name && !slices.Contains(s.unreadable, id) {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b snapshotID) int { return slices.Compare(b[:], a[:]) })
	return ids, err
}

// List implements raft.SnapshotStore. Raft relies on the first one: if that can't be read, the process
// ends (S12).
func (s *snapshots) List() (metas []*raft.SnapshotMeta, err error) {
	ids, err := s.ids()
	if err != nil {
		return nil, err
	}
	for _, id := range ids[:min(len(ids), snapshotsKept)] {
		meta, f, err := s.openFile(id)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return s.List() // newer ones are complete since, and it was deleted
		case err == nil:
			metas = append(metas, &meta.SnapshotMeta)
			f.Close()
		case len(metas) == 0:
			return nil, s.record.abort(Damaged(s.path(id.fileName()), err.Error()))
		}
	}
	return metas, nil
}

// Open implements raft.SnapshotStore. If the snapshot is not as it was written, the process ends (S12).
func (s *snapshots) Open(name string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	id := parseSnapshotID(name)
	meta, state, err := s.read(id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, fmt.Errorf("store: there is no snapshot %s; nothing was read; list them again, a newer one may have taken its place: %w", name, err)
	case err != nil:
		return nil, nil, s.record.abort(Damaged(s.path(id.fileName()), err.Error()))
	}
	return &meta.SnapshotMeta, state, nil
}

// read opens a snapshot, and verifies all of it.
func (s *snapshots) read(id snapshotID) (meta snapshotMeta, state io.ReadCloser, err error) {
	meta, f, err := s.openFile(id)
	if err != nil {
		return meta, nil, err
	}
	sum := crc32.New(castagnoli)
	_, err = io.Copy(sum, io.NewSectionReader(f, 0, meta.Size))
	if err == nil && sum.Sum32() != meta.Checksum {
		err = fmt.Errorf("%w: the state does not fit its checksum", errRecord)
	}
	if err != nil {
		return meta, nil, errors.Join(err, f.Close())
	}
	return meta, struct {
		io.Reader
		io.Closer
	}{bufio.NewReader(io.NewSectionReader(f, 0, meta.Size)), f}, nil
}

// verify looks for the newest snapshot that can be read; those that can't, before it, are not listed
// from now on. It returns all snapshots, and what is wrong with the newest.
func (s *snapshots) verify() (all []snapshotID, damage error, err error) {
	all, err = s.ids()
	for _, id := range all {
		_, state, err := s.read(id)
		if err == nil {
			return all, damage, state.Close()
		}
		s.unreadable = append(s.unreadable, id)
		damage = cmp.Or(damage, Damaged(s.path(id.fileName()), err.Error()))
	}
	return all, damage, err
}

// openFile opens a snapshot, and verifies its metadata.
func (s *snapshots) openFile(id snapshotID) (meta snapshotMeta, f file, err error) {
	f, err = s.open(id.fileName())
	if err != nil {
		return meta, nil, err
	}
	if meta, err = readSnapshotMeta(f); err == nil && meta.ID != id.String() {
		err = fmt.Errorf("%w: it is snapshot %s", errRecord, meta.ID)
	}
	if err != nil {
		return meta, nil, errors.Join(err, f.Close())
	}
	return meta, f, nil
}

func readSnapshotMeta(f file) (meta snapshotMeta, err error) {
	size, err := f.Seek(0, io.SeekEnd)
	trailer := make([]byte, snapshotTrailer)
	if err == nil {
		_, err = f.ReadAt(trailer, size-snapshotTrailer)
	}
	if err != nil {
		return meta, fmt.Errorf("%w: %w", errRecord, err)
	}
	length := int64(binary.BigEndian.Uint32(trailer))
	meta.Size = size - snapshotTrailer - length
	text := make([]byte, min(length, size))
	if meta.Size >= 0 {
		_, err = f.ReadAt(text, meta.Size)
	}
	sum := crc32.Checksum(append(text, trailer[:4]...), castagnoli)
	if err != nil || meta.Size < 0 || sum != binary.BigEndian.Uint32(trailer[4:]) {
		return meta, errors.Join(fmt.Errorf("%w: the metadata does not fit its checksum", errRecord), err)
	}
	stateSize := meta.Size
	if err = json.Unmarshal(text, &meta); err != nil || meta.Size != stateSize {
		err = errors.Join(fmt.Errorf("%w: the state has %d bytes instead of %d", errRecord, stateSize, meta.Size), err)
	}
	return meta, err
}

// Create implements raft.SnapshotStore.
func (s *snapshots) Create(version raft.SnapshotVersion, index, term uint64,
	configuration raft.Configuration, configurationIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	id := snapshotID{term, index, s.begun.Add(1)}
	f, err := s.create(id.fileName())
	if err != nil {
		return nil, err
	}
	sink := &snapshotSink{draft: f, store: s}
	sink.meta.SnapshotMeta = raft.SnapshotMeta{
		Version: version, ID: id.String(), Index: index, Term: term,
		Configuration: configuration, ConfigurationIndex: configurationIndex,
	}
	return sink, nil
}

// A snapshotSink is a snapshot that is being written.
type snapshotSink struct {
	draft
	store *snapshots
	meta  snapshotMeta
	ended bool // raft ends a sink more than once
}

func (s *snapshotSink) ID() string { return s.meta.ID }

func (s *snapshotSink) Write(p []byte) (int, error) {
	n, err := s.draft.Write(p)
	s.meta.Size += int64(n)
	s.meta.Checksum = crc32.Update(s.meta.Checksum, castagnoli, p[:n])
	return n, err
}

// Close completes the snapshot, and deletes those that it makes superfluous.
//
// One that ends before another that there is comes to nothing. A leader's may have been on its way for
// long: raft would take back what this node has applied, and look for entries that are in the newer
// snapshot only. Raft's own may be overtaken by a leader's while it is written: raft would take it for
// the latest.
func (s *snapshotSink) Close() error {
	if s.ended {
		return nil
	}
	s.store.closing.Lock()
	defer s.store.closing.Unlock()
	newest, err := newestSnapshot(s.store)
	if err == nil && s.meta.Index < newest.Index {
		err = fmt.Errorf("store: a snapshot that ends with entry %d is older than the one of this node, which ends with %d; nothing was changed",
			s.meta.Index, newest.Index)
	}
	text, jsonErr := json.Marshal(s.meta)
	if err := errors.Join(err, jsonErr); err != nil {
		return errors.Join(err, s.Cancel())
	}
	s.ended = true
	text = binary.BigEndian.AppendUint32(text, uint32(len(text)))
	s.draft.Write(binary.BigEndian.AppendUint32(text, crc32.Checksum(text, castagnoli))) // commit reports its error
	if err := s.commit(); err != nil {
		return err
	}
	ids, err := s.store.ids()
	ids = append(slices.Clone(s.store.unreadable), ids[min(len(ids), snapshotsKept):]...)
	for _, id := range ids {
		if removeErr := s.store.remove(id.fileName()); !errors.Is(removeErr, fs.ErrNotExist) {
			err = errors.Join(err, removeErr)
		}
	}
	return err
}

// Cancel implements raft.SnapshotSink.
func (s *snapshotSink) Cancel() error {
	if s.ended {
		return nil
	}
	s.ended = true
	return s.discard()
}

// begin deletes what a process left that ended while it wrote a snapshot, and finds out which numbers
// are used.
func (s *snapshots) begin() error {
	names, err := s.list(snapshotFolder)
	for _, name := range names {
		if path.Ext(name) == unfinished {
			err = errors.Join(err, s.remove(path.Join(snapshotFolder, name)))
		}
		s.begun.Store(max(s.begun.Load(), parseSnapshotID(name)[2]))
	}
	return err
}

// newestSnapshot is what the newest snapshot holds; without an index if there is none.
func newestSnapshot(snapshots raft.SnapshotStore) (raft.SnapshotMeta, error) {
	metas, err := snapshots.List()
	if err != nil || len(metas) == 0 {
		return raft.SnapshotMeta{}, err
	}
	return *metas[0], nil // the newest is the first
}
