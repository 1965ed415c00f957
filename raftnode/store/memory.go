package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"sync"

	"github.com/hashicorp/raft"
)

// A Memory stands in for a data directory, for tests and for embedding. The zero
// value is an empty one. It outlives the Store that writes it, so handing it to
// the next Open is a restart.
type Memory struct {
	mu       sync.Mutex
	held     bool // by a Store
	identity Identity

	logs      *raft.InmemStore // nil until the first Open
	votes     memoryTable
	snapshots memorySnapshots
}

// open takes hold of the memory for a node, and makes the node if it is new.
func (m *Memory) open(node string) (medium, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.held {
		return medium{}, fmt.Errorf("store: %w: another Store has this Memory open; nothing was changed; close that one first, or use a new Memory", ErrLocked)
	}
	if m.logs == nil {
		m.logs = raft.NewInmemStore()
		m.identity = Identity{Format: formatNow, Node: node, Incarnation: NewID()}
	}
	m.held = true
	return medium{
		logs:      m.logs,
		logName:   "the log in memory",
		votesName: "the votes in memory",
		votes:     &m.votes,
		snapshots: &m.snapshots,
		where:     "the memory of a process",
		identity:  m.identity,
		keep:      m.keep,
		free:      func() (uint64, error) { return math.MaxUint64, nil },
		reusable:  func() uint64 { return 0 },
		settle:    func() error { return nil },
		close:     m.release,
	}, nil
}

// Copy is what a power failure at this moment would leave: all that was written, and nothing of a
// snapshot that is not complete. It belongs to no Store, and the Memory continues without it. No write
// may be under way, or the copy has it in one of its parts and not in another.
func (m *Memory) Copy() (*Memory, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &Memory{identity: m.identity}
	if m.logs == nil {
		return c, nil
	}
	c.logs = raft.NewInmemStore()
	first, _ := m.logs.FirstIndex() // neither has an error in memory
	last, _ := m.logs.LastIndex()
	for index := max(first, 1); index <= last; index++ {
		entry := new(raft.Log)
		if err := errors.Join(m.logs.GetLog(index, entry), c.logs.StoreLog(entry)); err != nil {
			return nil, err
		}
	}
	m.votes.mu.Lock()
	defer m.votes.mu.Unlock()
	c.votes.values = maps.Clone(m.votes.values)
	m.snapshots.mu.Lock()
	defer m.snapshots.mu.Unlock()
	c.snapshots.complete, c.snapshots.begun = slices.Clone(m.snapshots.complete), m.snapshots.begun
	return c, nil
}

func (m *Memory) keep(id Identity) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.identity = id
	return nil
}

func (m *Memory) release() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held = false
	return nil
}

// memoryTable is a Table in memory.
type memoryTable struct {
	mu     sync.Mutex
	values map[string][]byte
}

func (t *memoryTable) Get(key string) ([]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	value, found := t.values[key]
	if !found {
		return nil, errNotFound
	}
	return bytes.Clone(value), nil
}

func (t *memoryTable) Put(pairs ...Pair) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.values == nil {
		t.values = map[string][]byte{}
	}
	for _, pair := range pairs {
		t.values[pair.Key] = bytes.Clone(pair.Value)
	}
	return nil
}

// memorySnapshots are snapshots in memory. Raft has such a store too, but its
// snapshots can be listed and sent as soon as they are begun, also those that
// fail.
type memorySnapshots struct {
	mu       sync.Mutex
	complete []*memorySnapshot // newest first, at most snapshotsKept
	begun    int               // for names
}

type memorySnapshot struct {
	meta raft.SnapshotMeta
	data []byte
}

func (s *memorySnapshots) Create(version raft.SnapshotVersion, index, term uint64,
	configuration raft.Configuration, configurationIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun++
	return &memorySink{store: s, meta: raft.SnapshotMeta{
		Version:            version,
		ID:                 fmt.Sprintf("%d-%d-%d", term, index, s.begun),
		Index:              index,
		Term:               term,
		Configuration:      configuration,
		ConfigurationIndex: configurationIndex,
	}}, nil
}

func (s *memorySnapshots) List() ([]*raft.SnapshotMeta, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var metas []*raft.SnapshotMeta
	for _, snapshot := range s.complete {
		meta := snapshot.meta
		metas = append(metas, &meta)
	}
	return metas, nil
}

func (s *memorySnapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, snapshot := range s.complete {
		if snapshot.meta.ID == id {
			meta := snapshot.meta
			return &meta, io.NopCloser(bytes.NewReader(snapshot.data)), nil
		}
	}
	return nil, nil, fmt.Errorf("store: there is no snapshot %s; nothing was read; list them again, a newer one has taken its place", id)
}

// add keeps a complete snapshot, which is newer than those before (see currentSnapshots).
func (s *memorySnapshots) add(snapshot *memorySnapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.complete = slices.Insert(s.complete, 0, snapshot)
	s.complete = s.complete[:min(len(s.complete), snapshotsKept)]
}

// memorySink is a snapshot that is being written; Close makes it one.
type memorySink struct {
	store *memorySnapshots
	meta  raft.SnapshotMeta
	data  bytes.Buffer
	ended bool
}

func (s *memorySink) ID() string                  { return s.meta.ID }
func (s *memorySink) Write(p []byte) (int, error) { return s.data.Write(p) }

func (s *memorySink) Close() error {
	if !s.ended {
		s.ended = true
		s.meta.Size = int64(s.data.Len())
		s.store.add(&memorySnapshot{meta: s.meta, data: s.data.Bytes()})
	}
	return nil
}

func (s *memorySink) Cancel() error {
	s.ended = true
	return nil
}
