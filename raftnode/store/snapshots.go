package store

import (
	"bytes"
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

// snapshots implements raft.SnapshotStore. A snapshot is one file: the state, then its
// raft.SnapshotMeta as JSON, then the length of that, then a checksum of it all. The file appears
// when it is complete (S10).
//
// Raft's own FileSnapshotStore has no checksum of index, term and configuration, does not flush the
// names of its files, and leaves a folder and an open file behind when the disk is full.
type snapshots struct {
	medium
	record     *record
	begun      atomic.Uint64 // the greatest number that is used
	completing fifoMutex     // one snapshot at a time
	complete   atomic.Pointer[[]*raft.SnapshotMeta]
	// files that are damaged, or failed when they were whole; they go with the next snapshot that
	// is complete
	unneeded []string
}

// A snapshotID is a snapshot's term, index, and a number that distinguishes those of one index.
// Later snapshots are greater.
type snapshotID [3]uint64

func (id snapshotID) String() string { return fmt.Sprintf("%d-%d-%d", id[0], id[1], id[2]) }

func snapshotFile(name string) string { return path.Join(snapshotFolder, name) }

const snapshotLengthBytes = 4 // of the length of the metadata

// load reads and verifies all snapshots, and removes what a process left that ended while it wrote
// one. Unreadable ones are left out. It returns the newest one's id, and what is wrong with it.
func (s *snapshots) load() (newest snapshotID, damage, err error) {
	names, err := s.list(snapshotFolder)
	var ids []snapshotID
	for _, name := range names {
		var id snapshotID
		fmt.Sscanf(name, "%d-%d-%d", &id[0], &id[1], &id[2])
		s.begun.Store(max(s.begun.Load(), id[2]))
		switch name {
		case id.String():
			ids = append(ids, id)
		case id.String() + unfinished:
			err = errors.Join(err, s.remove(snapshotFile(name)))
		}
	}
	slices.SortFunc(ids, func(a, b snapshotID) int { return slices.Compare(b[:], a[:]) })
	var readable []*raft.SnapshotMeta
	for i, id := range ids {
		meta, _, readErr := s.read(id.String())
		if readErr == nil {
			readable = append(readable, meta)
			continue
		}
		s.unneeded = append(s.unneeded, id.String())
		if i == 0 {
			newest, damage = id, Damaged(s.path(snapshotFile(id.String())), readErr.Error())
		}
	}
	s.complete.Store(&readable)
	return newest, damage, err
}

// List implements raft.SnapshotStore. It does not read the disk.
func (s *snapshots) List() ([]*raft.SnapshotMeta, error) {
	return slices.Clone(*s.complete.Load()), nil
}

// newest is what the newest snapshot holds; without an index if there is none.
func (s *snapshots) newest() raft.SnapshotMeta {
	for _, meta := range *s.complete.Load() {
		return *meta
	}
	return raft.SnapshotMeta{}
}

// Open implements raft.SnapshotStore. If the snapshot is not as it was written, the process ends
// (S12).
func (s *snapshots) Open(name string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, state, err := s.read(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, fmt.Errorf(
			"store: there is no snapshot %s; nothing was read; list them again, a newer one may "+
				"have taken its place: %w", name, err)
	case err != nil:
		return nil, nil, s.record.abort(Damaged(s.path(snapshotFile(name)), err.Error()))
	}
	return meta, io.NopCloser(bytes.NewReader(state)), nil
}

// read returns a snapshot, all of which it has verified.
func (s *snapshots) read(name string) (*raft.SnapshotMeta, []byte, error) {
	text, err := s.medium.read(snapshotFile(name))
	if err != nil {
		return nil, nil, err
	}
	text, fits := withoutChecksum(text)
	end := len(text) - snapshotLengthBytes
	if !fits || end < 0 {
		return nil, nil, fmt.Errorf("%w: it does not fit its checksum", errRecord)
	}
	state := text[:max(0, end-int(binary.BigEndian.Uint32(text[end:])))]
	meta := new(raft.SnapshotMeta)
	if err := json.Unmarshal(text[len(state):end], meta); err != nil || meta.ID != name ||
		meta.Size != int64(len(state)) {
		return nil, nil, errors.Join(
			fmt.Errorf("%w: it is snapshot %q of %d bytes", errRecord, meta.ID, meta.Size), err)
	}
	return meta, state, nil
}

// Create implements raft.SnapshotStore.
func (s *snapshots) Create(version raft.SnapshotVersion, index, term uint64,
	configuration raft.Configuration, configurationIndex uint64,
	_ raft.Transport) (raft.SnapshotSink, error) {
	id := snapshotID{term, index, s.begun.Add(1)}.String()
	f, err := s.create(snapshotFile(id))
	if err != nil {
		return nil, err
	}
	return &snapshotSink{draft: f, store: s, meta: raft.SnapshotMeta{
		Version: version, ID: id, Index: index, Term: term,
		Configuration: configuration, ConfigurationIndex: configurationIndex,
	}}, nil
}

// A snapshotSink is a snapshot that is being written.
type snapshotSink struct {
	draft
	store *snapshots
	meta  raft.SnapshotMeta
	sum   uint32 // of what is written
	ended bool   // raft ends a sink more than once
}

func (s *snapshotSink) ID() string { return s.meta.ID }

func (s *snapshotSink) Write(p []byte) (int, error) {
	n, err := s.draft.Write(p)
	s.meta.Size += int64(n)
	s.sum = crc32.Update(s.sum, castagnoli, p[:n])
	return n, err
}

// Close completes the snapshot, and deletes those that it makes superfluous.
//
// One that ends before another that there is comes to nothing. A leader's may have been on its way
// for long: raft would take back what this node has applied, and look for entries that are in the
// newer snapshot only. Raft's own may be overtaken by a leader's while it is written: raft would
// take it for the latest.
//
// Once writing has ended none is completed, because another process may have the directory.
func (s *snapshotSink) Close() error {
	if s.ended {
		return nil
	}
	s.store.completing.Lock()
	defer s.store.completing.Unlock()
	err := s.store.record.ended()
	if newest := s.store.newest(); err == nil && s.meta.Index < newest.Index {
		err = fmt.Errorf("store: a snapshot that ends with entry %d is older than the one of "+
			"this node, which ends with %d; nothing was changed",
			s.meta.Index, newest.Index)
	}
	text, jsonErr := json.Marshal(s.meta)
	if err := errors.Join(err, jsonErr); err != nil {
		return errors.Join(err, s.Cancel())
	}
	s.ended = true
	meta := s.meta
	s.Write(binary.BigEndian.AppendUint32(text, uint32(len(text)))) // commit reports the error
	s.Write(binary.BigEndian.AppendUint32(nil, s.sum))
	if err := s.commit(); err != nil {
		s.store.unneeded = append(s.store.unneeded, meta.ID) // it may have its name already
		return err
	}
	all := append([]*raft.SnapshotMeta{&meta}, *s.store.complete.Load()...)
	kept := all[:min(len(all), snapshotsKept)]
	s.store.complete.Store(&kept)
	for _, old := range all[len(kept):] {
		s.store.unneeded = append(s.store.unneeded, old.ID)
	}
	for _, name := range s.store.unneeded {
		err = errors.Join(err, s.store.remove(snapshotFile(name)))
	}
	if err == nil {
		s.store.unneeded = nil
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
