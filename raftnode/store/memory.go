package store

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"path"
	"sync"

	"github.com/hashicorp/raft"

	"zamok/raftnode/tail"
)

// A Memory stands in for a data directory, for tests and for embedding. The zero
// value is an empty one. It outlives the Store that writes it, so handing it to
// the next Open is a restart.
type Memory struct {
	inUse sync.Mutex // locked by a Store

	mu    sync.Mutex       // guards what follows
	logs  *raft.InmemStore // nil until the first Open
	votes Values
	files map[string][]byte // whole files, never changed
}

// Copy returns what a power failure at this moment would leave: all that was written, but for a
// snapshot that is incomplete. No Store uses it, and the Memory continues without it. No write may
// be in progress, or the copy has it in one of its parts and not in another.
func (m *Memory) Copy() (*Memory, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &Memory{files: maps.Clone(m.files), votes: maps.Clone(m.votes)}
	if m.logs == nil {
		return c, nil
	}
	c.logs = raft.NewInmemStore()
	all, err := extentOf(m.logs)
	for index := max(all.first, 1); index <= all.last && err == nil; index++ {
		entry := new(raft.Log)
		err = errors.Join(m.logs.GetLog(index, entry), c.logs.StoreLog(entry))
	}
	return c, err
}

func (m *Memory) path(name string) string {
	if name == "" {
		return "the memory of a process"
	}
	return name + " in memory"
}

func (m *Memory) free() uint64 { return math.MaxUint64 }

func (m *Memory) list(folder string) (names []string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.files {
		if path.Dir(name) == folder {
			names = append(names, path.Base(name))
		}
	}
	return names, nil
}

func (m *Memory) read(name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	text, ok := m.files[name]
	if !ok {
		return nil, fmt.Errorf("%s: %w", m.path(name), fs.ErrNotExist)
	}
	return text, nil
}

func (m *Memory) create(name string) (draft, error) {
	text := new(bytes.Buffer)
	commit := func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.files[name] = text.Bytes()
		return nil
	}
	return draft{text, commit, func() error { return nil }}, nil
}

func (m *Memory) remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.files, name)
	return nil
}

func (m *Memory) lock() error {
	if !m.inUse.TryLock() {
		return fmt.Errorf("store: %w: another Store has this Memory open; nothing was changed; "+
			"close that one first, or use a new Memory", ErrLocked)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.logs == nil {
		m.logs, m.votes, m.files = raft.NewInmemStore(), Values{}, map[string][]byte{}
	}
	return nil
}

func (m *Memory) openVotes(bool) (Table, error)    { return memoryTable{m}, nil }
func (m *Memory) openLog(ID, bool) (engine, error) { return memoryLog{m.logs}, nil }

func (m *Memory) close() error {
	m.inUse.Unlock()
	return nil
}

type memoryLog struct{ *raft.InmemStore }

func (memoryLog) lost() tail.End     { return tail.End{} }
func (memoryLog) begin() error       { return nil }
func (memoryLog) latest(int) uint64  { return 0 }
func (memoryLog) markDurable() error { return nil }
func (memoryLog) close() error       { return nil }

func (l memoryLog) StoreLogs(entries []*raft.Log) error {
	all, err := extentOf(l)
	if first := entries[0].Index; err == nil && all.has(first) {
		err = l.DeleteRange(first, all.last)
	}
	return errors.Join(err, l.InmemStore.StoreLogs(entries))
}

func (l memoryLog) inspect() (term uint64, err error) {
	all, err := extentOf(l)
	for index := max(all.first, 1); index <= all.last && err == nil; index++ {
		var entry raft.Log
		if err = readEntry(l, index, &entry); err == nil && entry.Term < term {
			err = fmt.Errorf("entry %d is of term %d, and the one before it of term %d", index,
				entry.Term, term)
		}
		term = entry.Term
	}
	return term, err
}

type memoryTable struct{ memory *Memory }

func (t memoryTable) Values() (Values, error) {
	t.memory.mu.Lock()
	defer t.memory.mu.Unlock()
	return maps.Clone(t.memory.votes), nil
}

func (t memoryTable) Put(changes Values) error {
	t.memory.mu.Lock()
	defer t.memory.mu.Unlock()
	maps.Copy(t.memory.votes, changes)
	return nil
}
