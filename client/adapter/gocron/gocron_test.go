package gocron

import (
	"context"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/jonboulle/clockwork"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api"
	"zamok/client"
	"zamok/client/admin"
)

const (
	job      = "report"
	interval = time.Minute
	hold     = 4 * time.Second
)

// program is one of several that run the same job, with a clock that the test turns.
type program struct {
	t         *testing.T
	scheduler gocron.Scheduler
	clock     *clockwork.FakeClock
	outcomes  chan gocron.JobStatus
}

// newProgram starts a scheduler with one job.
func newProgram(t *testing.T, distributed gocron.SchedulerOption,
	work func(context.Context)) *program {
	p := &program{t: t, clock: clockwork.NewFakeClock(), outcomes: make(chan gocron.JobStatus, 1)}
	var err error
	p.scheduler, err = gocron.NewScheduler(distributed, gocron.WithClock(p.clock),
		gocron.WithMonitor(p))
	require.NoError(t, err)
	_, err = p.scheduler.NewJob(gocron.DurationJob(interval), gocron.NewTask(work),
		gocron.WithName(job))
	require.NoError(t, err)
	p.scheduler.Start()
	t.Cleanup(func() { require.NoError(t, p.scheduler.Shutdown()) })
	return p
}

// IncrementJob is called by gocron at the end of each run, or when it was skipped.
func (p *program) IncrementJob(_ uuid.UUID, _ string, _ []string, status gocron.JobStatus) {
	p.outcomes <- status
}

func (p *program) RecordJobTiming(time.Time, time.Time, uuid.UUID, string, []string) {}

// advance turns the clock to the next run.
func (p *program) advance() {
	ctx, cancel := context.WithTimeout(p.t.Context(), testTimeout)
	defer cancel()
	require.NoError(p.t, p.clock.BlockUntilContext(ctx, 1))
	p.clock.Advance(interval)
}

func (p *program) outcome() gocron.JobStatus {
	select {
	case status := <-p.outcomes:
		return status
	case <-time.After(testTimeout):
		require.FailNow(p.t, "no outcome of a run")
		return ""
	}
}

// tick lets all programs come to the next run at the same time, and counts how many run it.
func tick(programs []*program) (ran int) {
	for _, p := range programs {
		p.advance()
	}
	for _, p := range programs {
		if p.outcome() == gocron.Success {
			ran++
		}
	}
	return ran
}

func nothing(context.Context) {}

// lockers are programs that share a job by its lock.
func lockers(t *testing.T, nodes []*api.Node) []*program {
	var programs []*program
	for range 3 {
		locker := &Locker{Client: dial(t, nodes, client.Config{TTL: time.Minute}), Prefix: "cron/",
			Hold: hold}
		programs = append(programs, newProgram(t, gocron.WithDistributedLocker(locker), nothing))
	}
	return programs
}

// free waits until the job's lock is free.
func free(t *testing.T, c *client.Client) {
	require.Eventually(t, func() bool {
		info, err := c.Get(t.Context(), "cron/"+job, 1)
		return err == nil && len(info.Held) == 0
	}, testTimeout, 20*time.Millisecond)
}

func TestOneSchedulerRunsAJob(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t)
	observer, programs := dial(t, nodes, client.Config{}), lockers(t, nodes)
	require.Equal(t, 1, tick(programs))
	free(t, observer)

	killLeader(t, nodes) // the next run comes while there is no leader, or a new one
	require.LessOrEqual(t, tick(programs), 1)
	free(t, observer)
	require.Equal(t, 1, tick(programs))
}

// A scheduler whose clock is late comes to a run when the job is done elsewhere.
func TestALateSchedulerSkipsTheRun(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t)
	programs := lockers(t, nodes)
	first, late := programs[:1], programs[1:2]
	require.Equal(t, 1, tick(first))
	require.Zero(t, tick(late), "it ran elsewhere just now")
	free(t, dial(t, nodes, client.Config{}))
	require.Equal(t, 1, tick(late), "the next run")
	require.Zero(t, tick(first))
}

func TestALossStopsTheJobsOnRequest(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t)
	c := dial(t, nodes, client.Config{TTL: time.Minute})
	var p *program
	lost := make(chan error, 1)
	locker := &Locker{Client: c, Hold: hold, OnLost: func(name string, err error) {
		assert.Equal(t, job, name)
		lost <- err
	}}
	began, ended := make(chan context.Context), make(chan struct{})
	p = newProgram(t, gocron.WithDistributedLocker(locker), func(ctx context.Context) {
		began <- ctx
		<-ctx.Done()
		close(ended)
	})
	p.advance()
	inJob := <-began
	info, err := c.Get(t.Context(), job, 1)
	require.NoError(t, err)
	_, err = admin.New(c).ForceRelease(t.Context(), job, info.Held[0].Token, "a test")
	require.NoError(t, err)
	select {
	case err := <-lost:
		require.ErrorIs(t, err, client.ErrForceReleased)
	case <-time.After(testTimeout):
		require.FailNow(t, "the loss is not reported")
	}
	require.NoError(t, inJob.Err(), "gocron gives the job no context that ends with the lock")
	require.NoError(t, p.scheduler.StopJobs())
	<-ended
}

func TestTheLeaderRunsJobs(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t)
	var programs []*program
	var electors []*Elector
	join := func(name string, cfg client.Config) {
		e := NewElector(dial(t, nodes, cfg), "cron", name)
		electors = append(electors, e)
		t.Cleanup(func() { _ = e.Close() })
		programs = append(programs, newProgram(t, gocron.WithDistributedElector(e), nothing))
	}
	leads := func(e *Elector) bool { return e.IsLeader(t.Context()) == nil }
	var net network
	join("one", client.Config{TTL: 7 * time.Second, Dialer: net.dial})
	require.Eventually(t, func() bool { return leads(electors[0]) }, testTimeout,
		5*time.Millisecond)
	join("two", client.Config{TTL: time.Minute})
	join("three", client.Config{TTL: time.Minute})
	require.Equal(t, 1, tick(programs))
	token := electors[0].Held().Token()
	leader, ok, err := dial(t, nodes, client.Config{}).Election("cron").Leader(t.Context())
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "one", string(leader.Value))

	killLeader(t, nodes)
	require.Equal(t, 1, tick(programs), "a leader of jobs outlives a leader of nodes")

	net.cutOff() // as when its machine ends
	var next *Elector
	require.Eventually(t, func() bool {
		for _, e := range electors[1:] {
			if leads(e) {
				next = e
			}
		}
		return next != nil
	}, testTimeout, time.Millisecond)
	require.ErrorIs(t, electors[0].IsLeader(t.Context()), ErrNotLeader,
		"the old one knows before there is a new one")
	require.Greater(t, next.Held().Token(), token)
	require.Equal(t, 1, tick(programs))

	require.NoError(t, next.Close())
	require.NoError(t, next.Close(), "again")
	require.ErrorIs(t, next.IsLeader(t.Context()), ErrNotLeader)
	require.Eventually(t, func() bool {
		return leads(electors[1]) || leads(electors[2])
	}, testTimeout, 5*time.Millisecond, "one is left")
	require.Equal(t, 1, tick(programs))
}
