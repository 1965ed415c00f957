package gocron

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-co-op/gocron/v2"

	"zamok/client"
)

// ErrNotLeader is what IsLeader of a candidate wraps that does not lead.
var ErrNotLeader = errors.New("not the leader")

// campaignAgain is how long an Elector waits after an election that failed, such as one that the
// access rules refuse.
const campaignAgain = time.Second

// Elector is a gocron.Elector: a candidate of an election, from NewElector to Close.
type Elector struct {
	lock    atomic.Pointer[client.Lock]
	failure atomic.Pointer[error] // of the last campaign
	cancel  context.CancelFunc
	ended   chan error
}

var _ gocron.Elector = (*Elector)(nil)

// NewElector begins to campaign. The name is that of a lock; the identity is what client.Election's
// Leader shows.
func NewElector(c *client.Client, name, identity string) *Elector {
	ctx, cancel := context.WithCancel(context.Background())
	e := &Elector{cancel: cancel, ended: make(chan error, 1)}
	go func() {
		defer close(e.ended)
		e.ended <- e.run(ctx, c.Election(name), []byte(identity))
	}()
	return e
}

func (e *Elector) run(ctx context.Context, election *client.Election, identity []byte) error {
	for {
		lock, err := election.Campaign(ctx, identity)
		if err == nil {
			e.lock.Store(lock)
			select {
			case <-lock.Lost():
				err = lock.Err()
			case <-ctx.Done():
				return lock.Unlock(context.WithoutCancel(ctx))
			}
		}
		e.failure.Store(&err)
		select {
		case <-time.After(campaignAgain):
		case <-ctx.Done():
			return nil
		}
	}
}

// Held is the lock of a candidate that leads, else nil. A job that needs its token or its context
// takes it when it begins and keeps it: later it may be that of another leadership.
func (e *Elector) Held() *client.Lock {
	if lock := e.lock.Load(); lock != nil && lock.Err() == nil {
		return lock
	}
	return nil
}

// IsLeader returns nil while the candidate leads. Otherwise the error says why, if the last
// election failed.
func (e *Elector) IsLeader(context.Context) error {
	failure := e.failure.Load()
	switch {
	case e.Held() != nil:
		return nil
	case failure != nil:
		return fmt.Errorf("%w: %w", ErrNotLeader, *failure)
	}
	return ErrNotLeader
}

// Close gives up the candidacy and the leadership. Call it when no job runs any more: another
// candidate leads then.
func (e *Elector) Close() error {
	e.cancel()
	return <-e.ended
}
