package raftnode

import (
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode/store"
)

// state is the state machine behind its lock, with the methods that raft calls.
type state struct {
	*base
	proposals *proposals // of this node, which it answers
	wake      func()     // the maintenance loop

	// committed is the latest committed configuration that this node has seen: applied, or in a
	// snapshot. Never nil. Raft itself returns only its latest one, which may never be committed.
	committed atomic.Pointer[configuration]

	// applied is raft's index of the latest entry that was applied or restored since raft started.
	// Raft's own AppliedIndex is ahead of it by the entries that raft has queued.
	applied atomic.Uint64

	// restoring is above 0 while a snapshot is read: raft's main loop may wait for that.
	restoring atomic.Int32

	mu      sync.RWMutex // guards machine and digests
	machine *fsm.Machine
	digests *digests // of this machine: a restore replaces both

	// The epoch reads these in each round, without waiting for a batch to be applied: the version
	// that an entry must be encoded for, and the state machine's earliest deadline, a clock.Time;
	// never = there is none.
	version atomic.Uint32
	due     atomic.Int64
}

const never = math.MaxInt64

// configuration is a list of servers in raft's log.
type configuration struct {
	index   uint64 // raft's; 0 = none is known
	servers servers
}

var _ raft.BatchingFSM = (*state)(nil)

// publish updates what the epoch reads. The caller holds the lock.
func (s *state) publish() {
	due, pending := s.machine.NextDue()
	if !pending {
		due = never
	}
	s.version.Store(s.machine.Version())
	s.due.Store(int64(due))
}

// sawCommitted records a committed configuration. It runs on raft's FSM goroutine.
func (s *state) sawCommitted(index uint64, list servers) {
	if index > s.committed.Load().index {
		s.committed.Store(&configuration{index, list})
	}
}

func (s *state) replace(m *fsm.Machine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.machine, s.digests = m, &digests{}
	s.publish()
	s.cfg.Restored(m)
}

// view lets f read the machine.
func (s *state) view(f func(*fsm.Machine)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	f(s.machine)
}

// member is what a node has announced, as far as this one knows; zero = nothing.
func (s *state) member(name string) (record fsm.MemberRecord) {
	s.view(func(m *fsm.Machine) { record, _ = m.Member(name) })
	return record
}

func (s *state) freeze() *fsm.Frozen {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machine.Freeze()
}

// logHoldOff logs a restore hold-off, after a restore and when this node starts to lead.
func (s *state) logHoldOff() {
	var left clock.Span
	s.view(func(m *fsm.Machine) { left = m.HoldOff() })
	if left > 0 {
		s.log.Warn("restore hold-off: no lock is granted yet, because clients of the old cluster "+
			"may still hold valid leases", "left", left)
	}
}

// ApplyBatch implements raft.BatchingFSM. A plain FSM gets no configuration entries, and raft could
// then not make a snapshot right behind one.
func (s *state) ApplyBatch(logs []*raft.Log) []any {
	answers := s.applyAll(logs)
	for i, l := range logs { // after the lock is released, because a Done may call View
		if a, ok := answers[i].(fsm.Applied); ok {
			s.proposals.applied(l, a)
		}
	}
	return answers
}

func (s *state) applyAll(logs []*raft.Log) []any {
	answers := make([]any, len(logs))
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, l := range logs {
		switch l.Type {
		case raft.LogCommand:
			answers[i] = s.apply(l)
		case raft.LogConfiguration:
			s.sawCommitted(l.Index, raft.DecodeConfiguration(l.Data).Servers)
			s.wake()
		}
	}
	s.applied.Store(logs[len(logs)-1].Index)
	// Under the same lock, so that readers see all this before the proposals are answered.
	s.publish()
	return answers
}

// Apply implements raft.FSM, which raft does not use beside ApplyBatch.
func (s *state) Apply(l *raft.Log) any { return s.ApplyBatch([]*raft.Log{l})[0] }

func (s *state) apply(l *raft.Log) fsm.Applied {
	s.proposals.committed(l)
	// An entry that does not match its checksum was changed after it was in this node's log: the
	// others apply another one. One that matches and can't be decoded is of another binary, which
	// may have acknowledged it.
	if err := store.Verify(l); err != nil {
		s.fatal(
			fmt.Errorf("raftnode: %w; it was not applied here; start the node again: its log is "+
				"read anew", err))
	}
	a, err := s.machine.Apply(l.Term, l.Data)
	if err != nil {
		s.fatal(fmt.Errorf("raftnode: entry %d: %w", l.Index, err))
	}
	for _, e := range a.Events {
		switch e.Kind {
		case fsm.EvDigestReported:
			s.digests.apply(l.Index, e.Digest, s.machine)
			fallthrough
		case fsm.EvEpochStarted:
			s.wake()
		}
	}
	s.cfg.Applied(s.machine, a)
	return a
}

// Snapshot implements raft.FSM. It takes no longer for a million locks than for one.
func (s *state) Snapshot() (raft.FSMSnapshot, error) { return frozen{s.freeze()}, nil }

// frozen is a state that is written while newer entries are applied.
type frozen struct{ state *fsm.Frozen }

func (f frozen) Persist(sink raft.SnapshotSink) error {
	if _, err := f.state.WriteTo(sink); err != nil {
		_ = sink.Cancel()
		return err
	}
	return sink.Close()
}

func (frozen) Release() {}

// Restore implements raft.FSM: at start-up, and when the leader sends a snapshot. A snapshot that
// can't be restored ends the process: raft would continue from an older one, without noticing the
// gap between that and the log. If it is undamaged, another binary can continue here.
func (s *state) Restore(snapshot io.ReadCloser) error {
	s.restoring.Add(1)
	defer s.restoring.Add(-1)
	defer snapshot.Close()
	machine, err := fsm.RestoreWithVersions(snapshot, s.cfg.Versions)
	version, format := (*fsm.VersionError)(nil), (*fsm.FormatError)(nil)
	if err != nil && !errors.As(err, &version) && !errors.As(err, &format) {
		err = store.Damaged("the newest snapshot", err.Error())
	}
	if err != nil {
		s.fatal(fmt.Errorf("raftnode: %w", err))
	}
	if err := machine.Check(); err != nil {
		// Every node restores these bytes: refusing them would stop all nodes.
		s.log.Error("ALARM: the restored state violates an invariant; continuing with it",
			"error", err)
	}
	s.replace(machine)
	s.logHoldOff()
	if metas, err := s.store.Snapshots().List(); err == nil && len(metas) > 0 {
		s.applied.Store(metas[0].Index)
		s.sawCommitted(metas[0].ConfigurationIndex, metas[0].Configuration.Servers)
	}
	s.wake()
	return nil
}
