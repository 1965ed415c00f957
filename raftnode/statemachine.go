package raftnode

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode/store"
)

// state is the state machine behind its lock, with the methods that raft calls.
type state struct {
	log       *slog.Logger
	version   fsm.VersionRange
	fatal     func(error) // does not return
	applied   func(*fsm.Machine, fsm.Applied)
	restored  func(*fsm.Machine)
	proposals *proposals
	digests   *digests
	kick      func() // wakes the maintenance loop

	committed committed
	snapshots raft.SnapshotStore // has the configuration of a restored one

	// restoring is above 0 while a snapshot is read: raft's main loop may wait for that.
	restoring atomic.Int32

	mu      sync.RWMutex // guards machine
	machine *fsm.Machine

	// What the epoch reads at each turn, under a lock of its own, so that it need not wait for a batch to be applied.
	latest struct {
		sync.Mutex
		version uint32
		due     clock.Time // the state machine's earliest deadline
		pending bool       // whether there is one
	}
}

var _ raft.BatchingFSM = (*state)(nil)

// view runs f on the state machine; f must not keep it.
func (s *state) view(f func(*fsm.Machine)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	f(s.machine)
}

// nextDue is the state machine's earliest deadline.
func (s *state) nextDue() (clock.Time, bool) {
	s.latest.Lock()
	defer s.latest.Unlock()
	return s.latest.due, s.latest.pending
}

// currentVersion is the version that an entry must be encoded for.
func (s *state) currentVersion() uint32 {
	s.latest.Lock()
	defer s.latest.Unlock()
	return s.latest.version
}

// publish updates latest. The caller holds the state machine's lock.
func (s *state) publish() {
	s.latest.Lock()
	defer s.latest.Unlock()
	s.latest.version = s.machine.Version()
	s.latest.due, s.latest.pending = s.machine.NextDue()
}

// reset clears the state, before raft replays it.
func (s *state) reset() { s.replace(fsm.NewWithVersions(s.version)) }

func (s *state) replace(m *fsm.Machine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.machine = m
	s.publish()
	s.digests.reset()
	s.restored(m)
}

// logHoldOff logs a restore hold-off, after a restore and when this node starts to lead.
func (s *state) logHoldOff() {
	var left clock.Span
	s.view(func(m *fsm.Machine) { left = m.HoldOff() })
	if left > 0 {
		s.log.Warn("restore hold-off: no lock is granted yet, because clients of the old cluster may still hold valid leases", "left", left)
	}
}

// ApplyBatch implements raft.BatchingFSM. A plain FSM gets no configuration entries, and raft could then not make a
// snapshot right behind one.
func (s *state) ApplyBatch(logs []*raft.Log) []any {
	answers := make([]any, len(logs))
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, l := range logs {
		switch l.Type {
		case raft.LogCommand:
			answers[i] = s.apply(l)
		case raft.LogConfiguration:
			s.committed.seen(l.Index, raft.DecodeConfiguration(l.Data).Servers)
			s.kick()
		}
	}
	// Under the same lock, so that readers see all this before raft answers the futures.
	s.publish()
	return answers
}

// Apply implements raft.FSM, which raft does not use beside ApplyBatch.
func (s *state) Apply(l *raft.Log) any { return s.ApplyBatch([]*raft.Log{l})[0] }

func (s *state) apply(l *raft.Log) fsm.Applied {
	s.proposals.committed(l)
	// An entry that does not match its checksum was changed after it was in this node's log: the others apply
	// another one. One that matches and can't be decoded is the same everywhere, and changes nothing anywhere.
	if err := store.Verify(l); err != nil {
		s.fatal(fmt.Errorf("raftnode: %w; it was not applied here; start the node again: its log is read anew", err))
	}
	a, err := s.machine.Apply(l.Term, l.Data)
	if err != nil {
		s.fatal(fmt.Errorf("raftnode: entry %d: %w", l.Index, err))
	}
	if a.Refused == fsm.Malformed {
		s.log.Error("skipped a log entry that cannot be decoded; the state is unchanged", "raft_index", l.Index, "fault", a.Fault)
	}
	s.digests.applied(a, s.machine.Digest())
	for _, e := range a.Events {
		switch e.Kind {
		case fsm.EvEpochStarted:
			s.kick()
		case fsm.EvDigestReported:
			s.digests.reported(e.Digest)
			s.kick()
		}
	}
	s.applied(s.machine, a)
	return a
}

// Snapshot implements raft.FSM. It takes no longer for a million locks than for one.
func (s *state) Snapshot() (raft.FSMSnapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return frozen{s.machine.Freeze()}, nil
}

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

// Restore implements raft.FSM: at start-up, and when the leader sends a snapshot. A snapshot that can't be
// decoded ends the process: raft would continue from an older one, without noticing the gap between that and the log.
func (s *state) Restore(snapshot io.ReadCloser) error {
	s.restoring.Add(1)
	defer s.restoring.Add(-1)
	defer snapshot.Close()
	machine, err := fsm.RestoreWithVersions(snapshot, s.version)
	if rules := (*fsm.VersionError)(nil); errors.As(err, &rules) {
		s.fatal(err) // a newer or older binary can continue here
	}
	if err != nil {
		s.fatal(fmt.Errorf("raftnode: %w", store.Damaged("the newest snapshot", err.Error())))
	}
	if err := machine.Check(); err != nil {
		// Every node restores these bytes: refusing them would stop all nodes.
		s.log.Error("ALARM: the restored state violates an invariant; continuing with it", "error", err)
	}
	s.replace(machine)
	s.logHoldOff()
	if metas, err := s.snapshots.List(); err == nil && len(metas) > 0 {
		s.committed.seen(metas[0].ConfigurationIndex, metas[0].Configuration.Servers)
	}
	s.kick()
	return nil
}
