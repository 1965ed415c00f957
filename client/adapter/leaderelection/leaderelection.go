package leaderelection

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"zamok/client"
)

// observeAgain is how long an elector waits before it reads the leader again after an error.
const observeAgain = time.Second

// LeaderElectionConfig is what a LeaderElector is made of. OnNewLeader may be nil, all else is
// required.
type LeaderElectionConfig struct {
	Client    *client.Client
	Name      string // of the lock
	Identity  string // what other candidates see
	Callbacks LeaderCallbacks
}

// LeaderCallbacks are called when the leadership changes.
type LeaderCallbacks struct {
	// OnStartedLeading is called in a goroutine of its own when the candidate leads. Its context
	// ends when it leads no more, or that of Run ends; then it returns.
	OnStartedLeading func(context.Context)
	// OnStoppedLeading is called at each end of Run, also if the candidate never led.
	OnStoppedLeading func()
	// OnNewLeader is called when another leader is observed than before, or the first.
	OnNewLeader func(identity string)
}

// LeaderElector is a candidate.
type LeaderElector struct {
	config   LeaderElectionConfig
	lock     atomic.Pointer[client.Lock]
	observed atomic.Pointer[string]
}

// NewLeaderElector makes a candidate. It does nothing on the network.
func NewLeaderElector(config LeaderElectionConfig) (*LeaderElector, error) {
	switch {
	case config.Client == nil:
		return nil, errors.New("leaderelection: Client must not be nil")
	case config.Name == "" || config.Identity == "":
		return nil, errors.New("leaderelection: Name and Identity must not be empty")
	case config.Callbacks.OnStartedLeading == nil || config.Callbacks.OnStoppedLeading == nil:
		return nil, errors.New(
			"leaderelection: OnStartedLeading and OnStoppedLeading must not be nil")
	}
	return &LeaderElector{config: config}, nil
}

// RunOrDie makes a candidate and runs it. It panics if the configuration is not complete, and logs
// why the leadership ended.
func RunOrDie(ctx context.Context, config LeaderElectionConfig) {
	le, err := NewLeaderElector(config)
	if err != nil {
		panic(err)
	}
	if err := le.Run(ctx); err != nil && ctx.Err() == nil {
		slog.Warn("zamok: a leader election has ended", "election", config.Name, "error", err)
	}
}

// Run waits until the candidate leads, and returns when it leads no more: nil if ctx ended and the
// leadership was released. An error wraps client.ErrLost if the leadership was lost, ctx.Err() if
// ctx ended before there was any, or says why the cluster refuses.
func (le *LeaderElector) Run(ctx context.Context) error {
	defer le.config.Callbacks.OnStoppedLeading()
	election := le.config.Client.Election(le.config.Name)
	observing, stop := context.WithCancel(ctx)
	defer stop()
	go le.observe(observing, election)

	lock, err := election.Campaign(ctx, []byte(le.config.Identity))
	if err != nil {
		return err
	}
	le.lock.Store(lock)
	leading, end := context.WithCancelCause(ctx)
	defer end(nil)
	context.AfterFunc(lock.Context(), func() { end(lock.Err()) })
	worked := make(chan struct{})
	go func() {
		defer close(worked)
		le.config.Callbacks.OnStartedLeading(leading)
	}()
	<-leading.Done()
	select {
	case <-worked: // only then may another one lead
	case <-lock.Lost():
	}
	return lock.Unlock(context.WithoutCancel(ctx))
}

// observe follows who leads until ctx ends.
func (le *LeaderElector) observe(ctx context.Context, election *client.Election) {
	for ctx.Err() == nil {
		for leader, err := range election.Observe(ctx) {
			identity := string(leader.Value)
			switch {
			case err != nil && ctx.Err() == nil:
				slog.Warn("zamok: can't observe who leads; trying again", "election",
					le.config.Name, "error", err)
				continue
			case err != nil || leader.Token == 0 || identity == le.GetLeader():
				continue
			}
			le.observed.Store(&identity)
			if le.config.Callbacks.OnNewLeader != nil {
				le.config.Callbacks.OnNewLeader(identity)
			}
		}
		select {
		case <-time.After(observeAgain):
		case <-ctx.Done():
		}
	}
}

// GetLeader is the identity of the last leader that was observed, or empty before the first.
func (le *LeaderElector) GetLeader() string {
	if observed := le.observed.Load(); observed != nil {
		return *observed
	}
	return ""
}

// IsLeader reports whether this candidate leads now. It looks at its lock, and calls no node.
func (le *LeaderElector) IsLeader() bool { return le.Held() != nil }

// Held is the lock of a candidate that leads, else nil. Its token is for the storage that the work
// writes to.
func (le *LeaderElector) Held() *client.Lock {
	if lock := le.lock.Load(); lock != nil && lock.Err() == nil {
		return lock
	}
	return nil
}
