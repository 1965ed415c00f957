package sim

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/client"
	"zamok/fsm"
	"zamok/jepsen/check"
	"zamok/jepsen/workload"
)

const (
	// restorePhaseMax is the longest time before a restore, and after it.
	restorePhaseMax = 5 * time.Minute
	// restorePhaseMin is how long each phase is at least.
	restorePhaseMin = 60 * time.Second
	// operatorDelayMax is the longest time between the end of a cluster and the restore.
	operatorDelayMax = 5 * time.Second
)

// All nodes end at once while programs hold locks, and the disks are lost. A backup, which misses
// the latest changes, is restored on a new machine, which grants nothing until the leases have
// ended that the lost cluster may have given; the programs are started again. No program of either
// cluster holds a lock while another one does, no token is issued twice, and the storage, which
// remembers the tokens of the lost cluster, accepts those of the restored one. In every second run
// the cluster ends during an election.
func TestRestoreUnderRandomFaults(t *testing.T) {
	notShort(t)
	t.Parallel()
	rare := &rareTotal{counts: map[string]int{}}
	total := max(simulatedDuration(t)/5, 2*restorePhaseMin)
	pieces := int((total + 2*restorePhaseMax - 1) / (2 * restorePhaseMax))
	t.Cleanup(func() { t.Logf("rare states:\n%s", formatRare(rare.counts)) })
	for i := range pieces {
		t.Run(fmt.Sprint("piece", i+1), func(t *testing.T) {
			t.Parallel()
			phase := total / time.Duration(2*pieces)
			c := Config{RunIndex: i, Drift: driftMax, Tune: withSmallLogs,
				Limit: 4*phase + timeLimitDefault}
			Run(t, c, func(s *Sim) { restoreUnderFaults(s, phase, i%2 == 0, rare) })
		})
	}
}

func restoreUnderFaults(s *Sim, phase time.Duration, duringElection bool, rare *rareTotal) {
	s.Start()
	load := s.Load(6, time.Second)
	load.startFurther()
	nemesis := s.StartNemesis(2, load, slices.Concat(nodeFaults, impairments, clientFaults))
	time.Sleep(phase)
	nemesis.Stop()
	time.Sleep(2 * backoffMax) // until there is load again
	s.Await(3*backupEvery, "a backup was taken", func() bool { return load.backups.last() != nil })
	random := s.Random("restore")
	keep(s)
	if leader := s.Leader(); duringElection {
		leader.Kill()
		time.Sleep(workload.UpTo(random, electionTimeout))
		if len(s.Leaders()) == 0 {
			s.rare.restores++
		}
	}
	for _, n := range s.Members() {
		n.LosePower()
	}
	ended := s.historyTime()
	s.Trace.Fault("all nodes are lost")
	lost := make(chan struct{})
	go func() {
		defer close(lost)
		load.abandon()
	}()
	time.Sleep(workload.UpTo(random, operatorDelayMax))
	next, err := s.restoredCluster(load.backups.last(), workload.TTLMax)
	require.NoError(s, err)

	next.InitialMembers()[0].Start()
	again := next.Load(6, time.Second)
	again.startFurther()
	release := make(chan func(), 1)
	go func() { release <- keep(next) }()
	for _, n := range next.InitialMembers()[1:] {
		n.Start()
		require.NoError(s, next.Leader().Running().Join(s.Within(time.Minute), n.Peer()))
	}
	nemesis = next.StartNemesis(2, again, slices.Concat(nodeFaults, impairments, clientFaults))
	time.Sleep(phase)
	nemesis.Stop()
	healed := next.historyTime()
	<-lost
	(<-release)()
	again.Stop()
	next.AwaitCounts(workload.TTLMax+backoffMax, fsm.Counts{})
	next.AwaitConverged(backoffMax)
	next.record.recordNodeStates()
	s.checkNodes()
	next.checkNodes()
	again.checkWatch()

	end := next.historyTime()
	// All that was in progress when the cluster ended stays as it was.
	s.record.put(check.Record{Stall: &check.Stall{
		Reason: "the cluster is lost", From: ended, To: end + time.Hour, CommitsBlocked: true,
	}})
	plan := check.Plan{
		Begin: historyBegin, Healed: end, End: end, Drain: drainMax, CompleteEvents: true,
		ClockRate: 1 + driftMax,
	}
	before := s.record.history(plan)
	plan.Healed, plan.TokensAbove = healed, greatestToken(before)
	after := next.record.history(plan)
	whole := concatenate(before, after)
	violations := check.Check(whole).Violations
	// Of both clusters together: exclusion and tokens. For the rest each has a history of its own.
	violations = slices.DeleteFunc(violations, func(f check.Finding) bool {
		return !slices.Contains([]string{"C2", "C3", "C4", "C8"}, f.Check)
	})
	each := slices.Concat(check.Check(before).Violations, check.Check(after).Violations)
	// Both use one storage.
	each = slices.DeleteFunc(each, func(f check.Finding) bool { return f.Check == "C3" })
	for _, f := range slices.Concat(violations, each) {
		s.Errorf("%v", f)
	}
	rare.add(s.rare.counts(s.Audit))
	rare.add(next.rare.counts(next.Audit))
	held := count(before.Holds, func(h check.Hold) bool { return h.From < ended && h.To > ended })
	granted := slices.MinFunc(grantsOf(after),
		func(a, b check.Event) int { return int(a.At - b.At) })
	s.Logf("seed %d: %d backups; all nodes were lost at %v, and %d holds ended later; "+
		"the first grant was at %v; %d holds before, %d after",
		s.Seed, load.backups.taken, ended, held, granted.At, len(before.Holds), len(after.Holds))
	assert.Positive(s, held, "no lock was held when the cluster was lost")
	assert.Greater(s, granted.At-ended, workload.TTLMax*9/10,
		"a grant before the leases of the lost cluster had ended")
	assert.Greater(s, len(after.Holds), int(phase/time.Second)/4,
		"too few grants after the restore")
}

// keep has a program of its own acquire one lock, which it holds until its session is lost or
// release is called.
func keep(s *Sim) (release func()) {
	s.Helper()
	p := s.program("e1", func(c *client.Config) { c.TTL = workload.TTLMax })
	var h *workload.Hold
	items := []client.Item{client.ExclusiveItem("kept")}
	op := check.Op{Client: p.label, Kind: check.OpLock, Items: check.ItemsOf(items)}
	_ = s.record.Call(op, func(op *check.Op) error {
		l, err := p.LockAll(s.Within(drainMax), items)
		if !assert.NoError(s, err) {
			return err
		}
		op.Ref, op.Token = check.Ref{Session: l.Session(), Ticket: l.Ticket()}, uint64(l.Token())
		h = s.record.StartHold(check.Hold{Client: p.label, Ref: op.Ref, Token: op.Token,
			Items: op.Items})
		context.AfterFunc(l.Context(), func() { h.Finish(check.Lost, check.LossReason(l.Err())) })
		return nil
	})
	return func() {
		if h != nil {
			h.Finish(check.Unlocked, "")
		}
		assert.NoError(s, p.Close())
	}
}

// abandon lets the programs of a lost cluster notice the end of their leases, and kills them.
func (l *Load) abandon() {
	time.Sleep(2 * workload.TTLMax)
	l.cancel()
	for _, h := range append(l.hosts, l.operator) {
		h.kill()
	}
	for _, end := range l.background {
		end()
	}
}

func grantsOf(h *check.History) []check.Event {
	return slices.DeleteFunc(slices.Clone(h.Events), func(ev check.Event) bool {
		return ev.Kind != check.EvGranted
	})
}

func greatestToken(h *check.History) (token uint64) {
	for _, ev := range h.Events {
		token = max(token, ev.Token)
	}
	return token
}

// concatenate is the history of a cluster and of the one that was restored from its backup. Clients
// of the second have other names. The writes of both are in that of the first, whose storage both
// use.
func concatenate(before, after *check.History) *check.History {
	const numbersFrom = 1 << 40 // of the second one's calls
	whole := *before
	name := func(client string) string { return "restored " + client }
	whole.Ops, whole.Holds = slices.Clone(before.Ops), slices.Clone(before.Holds)
	for _, op := range after.Ops {
		op.Client, op.ID = name(op.Client), op.ID+numbersFrom
		whole.Ops = append(whole.Ops, op)
	}
	for _, h := range after.Holds {
		h.Client = name(h.Client)
		whole.Holds = append(whole.Holds, h)
	}
	whole.Sessions, whole.Faults = slices.Clone(before.Sessions), slices.Clone(before.Faults)
	for _, x := range after.Sessions {
		x.Client = name(x.Client)
		whole.Sessions = append(whole.Sessions, x)
	}
	for _, x := range after.Faults {
		x.Target = name(x.Target)
		whole.Faults = append(whole.Faults, x)
	}
	whole.Events = slices.Concat(before.Events, after.Events)
	whole.Renewals = slices.Concat(before.Renewals, after.Renewals)
	return &whole
}
