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

// state is the machine behind its lock, and what raft calls to change it.
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
	snapshots raft.SnapshotStore // to read the configuration of one that was restored

	// restoring is above 0 while a snapshot is read: the main loop may be silent meanwhile.
	restoring atomic.Int32

	mu      sync.RWMutex // guards machine
	machine *fsm.Machine

	// What the epoch asks for at each turn. It has a lock of its own, so that the epoch need not
	// wait for a batch to be applied.
	latest struct {
		sync.Mutex
		version uint32
		due     clock.Time // the machine's earliest deadline
		pending bool       // whether there is one
	}
}

var _ raft.BatchingFSM = (*state)(nil)

// view runs f on the machine as it stands; f must not keep it.
func (s *state) view(f func(*fsm.Machine)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	f(s.machine)
}

// nextDue is the machine's earliest deadline.
func (s *state) nextDue() (clock.Time, bool) {
	s.latest.Lock()
	defer s.latest.Unlock()
	return s.latest.due, s.latest.pending
}

// currentVersion is what an entry must be encoded under.
func (s *state) currentVersion() uint32 {
	s.latest.Lock()
	defer s.latest.Unlock()
	return s.latest.version
}

// publish notes what the epoch asks for. The caller holds the machine's lock.
func (s *state) publish() {
	s.latest.Lock()
	defer s.latest.Unlock()
	s.latest.version = s.machine.Version()
	s.latest.due, s.latest.pending = s.machine.NextDue()
}

// reset forgets everything, before raft replays it.
func (s *state) reset() { s.replace(fsm.NewWithVersions(s.version)) }

func (s *state) replace(m *fsm.Machine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.machine = m
	s.publish()
	s.digests.reset()
	s.restored(m)
}

// logHoldOff logs that nothing is granted for a while, if that is so: what is restored here and what leads says it.
func (s *state) logHoldOff() {
	var left clock.Span
	s.view(func(m *fsm.Machine) { left = m.HoldOff() })
	if left > 0 {
		s.log.Warn("restore hold-off: no lock is granted yet, because clients of the old cluster may still hold valid leases", "left", left)
	}
}

// ApplyBatch implements raft.BatchingFSM. A plain FSM would not be shown configuration entries, and
// could then not make a snapshot behind one.
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
	// Readers must see all this before raft answers the futures: so under the same lock.
	s.publish()
	return answers
}

// Apply implements raft.FSM, which raft does not use beside ApplyBatch.
func (s *state) Apply(l *raft.Log) any { return s.ApplyBatch([]*raft.Log{l})[0] }

func (s *state) apply(l *raft.Log) fsm.Applied {
	s.proposals.committed(l)
	// An entry that does not fit its checksum was changed after it was in this node's log: the others apply
	// another one. One that fits and can't be decoded is the same everywhere, and changes nothing anywhere.
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

// frozen is written beside what continues.
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
// decoded ends the process: raft would continue from an older one, and not notice what is missing between
// that and the log.
func (s *state) Restore(snapshot io.ReadCloser) error {
	s.restoring.Add(1)
	defer s.restoring.Add(-1)
	defer snapshot.Close()
	machine, err := fsm.RestoreWithVersions(snapshot, s.version)
	if rules := (*fsm.VersionError)(nil); errors.As(err, &rules) {
		s.fatal(err) // another version of this binary can continue here
	}
	if err != nil {
		s.fatal(fmt.Errorf("raftnode: %w", store.Damaged("the newest snapshot", err.Error())))
	}
	if err := machine.Check(); err != nil {
		// Every node restores these bytes: to refuse them would stop all of them.
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
