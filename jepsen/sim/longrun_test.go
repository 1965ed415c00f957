package sim

import (
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"zamok/raftnode"
)

// HoursVariable says how many virtual hours of random faults are simulated: one half with nodes alone, which
// many clients of the simulation's own ask directly, the other with the whole stack. Without it, one hour; with
// -short, minutes.
const HoursVariable = "ZAMOK_SIM_HOURS"

// simulatedDuration is how long each half of the hours is.
func simulatedDuration(t *testing.T) time.Duration {
	t.Helper()
	hours := 1.0
	if testing.Short() {
		hours = 1.0 / 10
	}
	if text := os.Getenv(HoursVariable); text != "" {
		var err error
		if hours, err = strconv.ParseFloat(text, 64); err != nil || hours <= 0 {
			t.Fatalf("%s=%q is not a number of hours", HoursVariable, text)
		}
	}
	return time.Duration(hours / 2 * float64(time.Hour))
}

// Random faults, many clients, and everything that must hold of any run. The hours are cut into
// pieces, so that both processors have something to do and a failure leaves a trace of readable
// length.
func TestRandomFaults(t *testing.T) {
	t.Parallel()
	inPieces(t, simulatedDuration(t), func(t *testing.T, piece int, lasts time.Duration) (faults int64) {
		c := Config{RunIndex: piece, AdaptiveTimeouts: piece%2 == 1, Tune: withSmallLogs, Limit: 2*lasts + timeLimitDefault}
		Run(t, c, func(s *Sim) { faults = runWithFaults(s, lasts) })
		return faults
	})
}

// pieceDurationMax is how long a storm lasts at most.
const pieceDurationMax = 15 * time.Minute

// inPieces runs storms that last so long together, all of one length. Each is told its number.
func inPieces(t *testing.T, total time.Duration, storm func(t *testing.T, piece int, lasts time.Duration) int64) {
	t.Helper()
	var faults atomic.Int64
	t.Cleanup(func() { // when all pieces are over
		t.Logf("%v of virtual time, %d faults", total, faults.Load())
	})
	pieces := int((total + pieceDurationMax - 1) / pieceDurationMax)
	for i := range pieces {
		t.Run(fmt.Sprint("piece", i+1), func(t *testing.T) {
			t.Parallel()
			faults.Add(storm(t, i, total/time.Duration(pieces)))
		})
	}
}

// faultsPerMinute is what a run must have at least.
const faultsPerMinute = 5

// runWithFaults is one run under random faults, and returns how many there were. It fails also when too
// little happened.
func runWithFaults(s *Sim, lasts time.Duration) (happened int64) {
	const ttl = 5 * time.Second
	s.Start()
	load := s.Load(LoadConfig{Clients: 8, TTL: ttl, Locks: 4, HoldMax: time.Second, DieEvery: 20})
	faults := s.StartNemesis(2, AllFaults()...)
	faults.Run(lasts)
	faults.Stop()
	finishRun(s)
	load.Stop()
	s.AwaitDrained(2*ttl + backoffMax)
	s.AwaitConverged(backoffMax)
	s.Check(load.History)
	s.CheckExpirations(load.History, faults.ClockStallTime())

	minutes := int(lasts / time.Minute)
	counts := load.Count()
	compared, restored := s.Audit.Compared()
	s.Logf("%v: %d entries, %d epochs, %d grants believed in, %d deaths; %d effects and %d snapshots compared; %d processes ended themselves",
		lasts, len(s.Audit.Entries()), s.Audit.Epochs(), len(load.holds), len(load.deaths), compared, restored, faults.UnexpectedExits())
	s.Logf("faults: %v; answers: %v", faults.Counts(), counts)
	for kind, times := range faults.Counts() {
		assert.NotZero(s, times, "%s never happened", kind)
		happened += int64(times)
	}
	assert.Greater(s, happened, int64(faultsPerMinute*minutes), "too few faults")
	assert.Greater(s, len(load.holds), 60*minutes, "too few grants")
	assert.Greater(s, len(load.deaths), 2*minutes, "too few deaths")
	assert.Greater(s, s.Audit.Epochs(), minutes, "too few leader changes")
	assert.Greater(s, restored, minutes, "too few snapshots restored")
	assert.Greater(s, compared, len(s.Audit.Entries()), "too little was compared")
	assert.NotZero(s, counts[OpAcquire][Unknown], "no acquisition had an unknown outcome")
	assert.NotZero(s, counts[OpAcquire][NotDone], "no acquisition was refused")
	return happened
}

// finishRun is what chance might leave out: a follower that is sent a snapshot, and a leader whose
// watchdog ends it, which it does only when the process has lived for a minute.
func finishRun(s *Sim) {
	time.Sleep(backoffMax)
	away := s.Others(s.Leader())[0]
	_, before := s.Audit.Compared()
	s.Network.Isolate(away.Host)
	time.Sleep(time.Minute) // until the leader's log begins where this one's has long ended
	s.Network.HealAll()
	s.AwaitApplied(s.Leader(), away, 2*backoffMax)
	_, after := s.Audit.Compared()
	assert.Greater(s, after, before, "no snapshot was installed over the network")

	time.Sleep(time.Minute)
	stuck := s.Leader()
	for stuck.Disk.Stall(); ; stuck.Disk.Stall() {
		s.Await(2*hangDuration, "the watchdog ends a leader whose disk hangs", func() bool { return stuck.processEnded() || stuck.Running() != nil && !stuck.Status().Leading })
		if stuck.processEnded() {
			break
		}
		stuck.Disk.Resume() // it was just handing over, to change its timeout
		time.Sleep(backoffMax)
		stuck = s.Leader()
	}
	assert.ErrorIs(s, stuck.Fatal(), raftnode.ErrStuck)
	s.LeaderOtherThan(stuck).MustPropose(nil)
	stuck.Restart()
	time.Sleep(backoffMax)
}
