package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"zamok/bench/driver"
	"zamok/bench/measure"
	"zamok/cmd/zamok/loadgen"
)

const (
	killedWaiters = 10
	// between the waiters' calls, so that their order is known
	killedStagger         = 50 * time.Millisecond
	killedHold            = 5 * time.Millisecond
	killedRetryDelay      = 10 * time.Millisecond // after a failed attempt
	killedWarmup          = time.Second           // before the leader is killed
	killedAttemptInterval = 25 * time.Millisecond // between new attempts after it
	killedTimeout         = 30 * time.Second      // for everything after it
)

// leaderKill is one kill of a leader: one client holds a lock, ten wait for it, and one, the
// prober, locks and unlocks another lock all the time.
type leaderKill struct {
	// attempt of the prober; only the prober uses it until it has ended
	longest           time.Duration
	attempts          sync.WaitGroup
	served            chan int // the waiters, in the order of their grants
	holders, overlaps atomic.Int64
}

// LeaderKilled kills the leader, measures how long no client gets a lock, checks whether the held
// lock and its queue have survived, and starts the node again.
func (b *Bench) LeaderKilled(ctx context.Context) (Values, error) {
	leader, err := b.Cluster.Leader(ctx)
	if err != nil {
		return nil, err
	}
	clients, end, err := b.openMany(ctx, 3+killedWaiters, b.session(1))
	defer end()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, killedWarmup+killedTimeout)
	defer cancel()
	k := &leaderKill{served: make(chan int, killedWaiters)}
	unlock, err := clients[0].Lock(ctx, "held")
	if err != nil {
		return nil, err
	}
	var running sync.WaitGroup
	probing, stop := context.WithCancel(ctx)
	defer stop()
	running.Go(func() { k.probe(probing, clients[1]) })
	waiting := &sync.WaitGroup{}
	for i, c := range clients[3:] {
		waiting.Go(func() { k.wait(ctx, i, c) })
		loadgen.Sleep(ctx, killedStagger)
	}
	loadgen.Sleep(ctx, killedWarmup)
	b.Cluster.Kill(leader)
	values := Values{"survived": 0, "inversions": 0}
	took, err := k.firstLock(ctx, clients[2])
	if err == nil {
		values["next"] = measure.Milliseconds(took)
		k.release(ctx, values, unlock, waiting)
	}
	stop()
	cancel()
	end() // all calls return now
	running.Wait()
	waiting.Wait()
	k.attempts.Wait()
	values["longest"] = measure.Milliseconds(k.longest)
	return values, errors.Join(err, b.Cluster.Restart(leader), b.Ready(context.WithoutCancel(ctx)))
}

// release releases the held lock and counts the waiters that are granted it.
func (k *leaderKill) release(ctx context.Context, values Values, unlock driver.Unlock,
	waiting *sync.WaitGroup) {
	values["early"] = float64(len(k.served)) // served while the lock was held: it did not survive
	if err := unlock(ctx); err == nil {
		values["survived"] = 1
	}
	released := time.Now()
	awaitServed(ctx, waiting, killedTimeout)
	values["served"] = float64(len(k.served))
	values["serving"] = measure.Milliseconds(time.Since(released))
	values["twice"] = float64(k.overlaps.Load())
	last := -1
	for range len(k.served) {
		i := <-k.served
		if i < last {
			values["inversions"]++
		}
		last = i
	}
}

// probe locks and unlocks its own key again and again, to measure how long a call may hang that is
// in progress when the leader dies.
func (k *leaderKill) probe(ctx context.Context, c driver.Client) {
	for ctx.Err() == nil {
		called := time.Now()
		unlock, err := c.Lock(ctx, "probe")
		k.longest = max(k.longest, time.Since(called)) // also of one that hangs to the end
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			loadgen.Sleep(ctx, killedRetryDelay)
			continue
		}
		_ = unlock(ctx) // if it failed, the next attempt shows it
	}
}

// firstLock requests one new lock after the other, each a little later and without waiting for
// those before, until one is granted: then the cluster serves again.
func (k *leaderKill) firstLock(ctx context.Context,
	c driver.Client) (took time.Duration, err error) {
	killedAt := time.Now()
	acquired := make(chan time.Duration, 1)
	ticker := time.NewTicker(killedAttemptInterval)
	defer ticker.Stop()
	for i := 0; ; i++ {
		k.attempts.Go(func() { // ends when it is served or its client is closed
			unlock, err := c.Lock(ctx, fmt.Sprintf("next-%d", i))
			if err != nil {
				return
			}
			select {
			case acquired <- time.Since(killedAt):
			default: // another was first
			}
			_ = unlock(ctx)
		})
		select {
		case took := <-acquired:
			return took, nil
		case <-ctx.Done():
			return 0, fmt.Errorf("no client got a lock in %v", killedTimeout)
		case <-ticker.C:
		}
	}
}

func (k *leaderKill) wait(ctx context.Context, i int, c driver.Client) {
	var unlock driver.Unlock
	for {
		var err error
		if unlock, err = c.Lock(ctx, "held"); err == nil {
			break
		}
		if ctx.Err() != nil {
			return
		}
		// its queue position is lost, and the order will show it
		loadgen.Sleep(ctx, killedRetryDelay)
	}
	k.served <- i
	if k.holders.Add(1) > 1 {
		k.overlaps.Add(1)
	}
	loadgen.Sleep(ctx, killedHold)
	k.holders.Add(-1)
	_ = unlock(ctx)
}
