package fsm_test

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/fsm"
	"zamok/session"
)

// checkLiveness lets every session live on and every holder drop what it has: everybody who waits
// must be granted, or come to the end of the wait. Then it lets everybody fall silent, and nothing
// may be left.
func (p *comparison) checkLiveness() error {
	term := p.model.term + 1
	start := &fsm.LeaderStart{Node: "n1", Cluster: fsm.ClusterID{1}}
	if _, err := p.apply(newRecord(term,
		&fsm.Entry{Version: 1, Commands: []fsm.Command{start}})); err != nil {
		return err
	}
	served := true
	for rounds := 2 + 4*len(p.model.tickets); len(p.model.tickets) > 0; rounds-- {
		if rounds == 0 {
			return fmt.Errorf("%d tickets are left, the first %v", len(p.model.tickets),
				p.model.tickets[0].TicketRef)
		}
		// Who is not served within a second waits for a delay to end, or for the quiet after a
		// restore.
		pace := clock.Second
		if !served {
			pace = max(fsm.DelayMax, p.model.holdOffUntil.Sub(p.model.time))
		}
		a, err := p.apply(newRecord(term, p.dropAll(pace)))
		if err != nil {
			return err
		}
		served = false
		for _, e := range a.Events {
			served = served || e.Kind == fsm.EvGranted
			if (e.Kind == fsm.EvRefused && e.Reason != fsm.WaitTimeout) ||
				e.Kind == fsm.EvSessionEnded {
				return fmt.Errorf("while everybody lives and drops: %s", show(e))
			}
		}
	}
	return p.expireAll(term)
}

// dropAll is a while later: all sessions renew, and holders drop.
func (p *comparison) dropAll(pace clock.Span) *fsm.Entry {
	e := &fsm.Entry{Version: 1,
		Reading: clock.Reading{Epoch: p.model.epoch, Now: p.model.time.Add(pace)}}
	for _, s := range p.model.sessions {
		e.Renewals = append(e.Renewals, s.id)
	}
	for _, t := range p.model.tickets {
		if t.state == fsm.Granted {
			e.Commands = append(e.Commands, &fsm.Drop{Session: t.Session, Ticket: t.Ticket})
		}
	}
	return e
}

func (p *comparison) expireAll(term uint64) error {
	for range 2 { // the leases first, then the delays that they leave
		e := &fsm.Entry{Version: 1,
			Reading: clock.Reading{Epoch: p.model.epoch, Now: p.model.time.Add(fsm.LongestTTLMax)}}
		if _, err := p.apply(newRecord(term, e)); err != nil {
			return err
		}
	}
	if counts := p.machine.Counts(); counts != (fsm.Counts{}) {
		return fmt.Errorf("left when all are silent: %+v", counts)
	}
	if at, any := p.machine.NextDue(); any {
		return fmt.Errorf("something is due at %v when all are silent", at)
	}
	if snapshot := machineSnapshot(p.machine); bytes.Contains(snapshot, []byte(lockPrefix)) {
		return fmt.Errorf("a name is left in the snapshot: %q", snapshot)
	}
	return p.check()
}

// A name out of use costs nothing: not in a snapshot, not in memory.
func TestUnusedNamesUseNoMemory(t *testing.T) {
	m := fsm.New()
	apply := func(now clock.Time, commands ...fsm.Command) fsm.Applied {
		e := fsm.Entry{Version: 1, Reading: clock.Reading{Epoch: m.Epoch(), Now: now},
			Commands: commands}
		a, err := m.Apply(1, e.Append(nil))
		require.NoError(t, err)
		return a
	}
	apply(0, &fsm.LeaderStart{Node: "n1", Cluster: fsm.ClusterID{1}})
	open := &fsm.OpenSession{Secret: session.Hash{1},
		Settings: session.Settings{TTL: fsm.LongestTTLDefault, LockDelay: clock.Millisecond}}
	id := apply(0, open).Results[0].Session
	ticket := uint64(0)
	// use takes and leaves many names: some dropped, some given up while waiting, some by force.
	use := func(names int) {
		for range names / 4 {
			name := fmt.Sprintf("%s/a name that is never used again/%d", lockPrefix, ticket)
			items := []fsm.Item{
				{Name: name, Mode: fsm.Exclusive}, {Name: name + "1", Mode: fsm.Shared},
				{Name: name + "2", Mode: fsm.Permits, Permits: 1, Of: 2},
				{Name: name + "3", Mode: fsm.Exclusive},
			}
			a := apply(m.Time(),
				&fsm.Acquire{Session: id, Ticket: ticket + 1, AckedThrough: ticket,
					Items: items[:3], Owner: name},
				&fsm.Acquire{Session: id, Ticket: ticket + 2, AckedThrough: ticket, Items: items,
					Wait: fsm.Forever})
			require.Equal(t, fsm.Waiting, a.Results[1].State)
			apply(m.Time().Add(clock.Millisecond), &fsm.Drop{Session: id, Ticket: ticket + 2},
				&fsm.ForceRelease{Name: name, Token: a.Results[0].Token})
			ticket += 2
		}
		apply(m.Time().Add(2*clock.Millisecond),
			&fsm.Attach{Session: id, Secret: open.Secret, AckedThrough: ticket})
	}
	use(4000) // what any use leaves: room in maps
	before, empty := heapInUse(), len(machineSnapshot(m))
	use(sized(200_000, 100_000, 100_000))
	grown := int64(heapInUse()) - int64(before)
	assert.Less(t, grown, int64(1<<20), "bytes grown")
	assert.InDelta(t, empty, len(machineSnapshot(m)), 32, "bytes of the snapshot")
	assert.Equal(t, fsm.Counts{Sessions: 1}, m.Counts())
	require.NoError(t, m.Check())
}

func heapInUse() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// machineSnapshot is a machine's snapshot.
func machineSnapshot(m *fsm.Machine) []byte { return snapshotBytes(m.Freeze()) }

func snapshotBytes(f *fsm.Frozen) []byte {
	var b bytes.Buffer
	if _, err := f.WriteTo(&b); err != nil {
		panic(err) // a buffer never fails
	}
	return b.Bytes()
}
