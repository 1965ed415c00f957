package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"zamok/bench/measure"
	"zamok/bench/peer"
)

const (
	killedWaiters  = 10
	killedApart    = 50 * time.Millisecond // between the waiters' questions, so that their order is known
	killedHold     = 5 * time.Millisecond
	killedBefore   = time.Second      // how long all is well before the leader dies
	killedPatience = 30 * time.Second // for everything after it
)

// killed is one death of a leader: one holds a lock, ten wait for it, and one asks for another lock all
// the time.
type killed struct {
	died    atomic.Int64 // nanoseconds of the machine's clock; 0 = not yet
	next    chan time.Duration
	longest atomic.Int64 // of the prober's attempts, in nanoseconds

	mu     sync.Mutex
	order  []int // of the waiters that were served
	inside int
	twice  int
}

// LeaderKilled kills the leader, measures how long nobody gets a lock, looks whether the held lock and
// its queue survived, and starts the node again.
func (b *Bench) LeaderKilled(ctx context.Context) (Values, error) {
	leader, err := b.Cluster.Leader(ctx)
	if err != nil {
		return nil, err
	}
	clients, failed, err := b.openMany(ctx, 2+killedWaiters, b.session(1))
	end := sync.OnceFunc(func() { closeAll(clients) })
	defer end()
	if failed > 0 {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, killedBefore+killedPatience)
	defer cancel()
	k := &killed{next: make(chan time.Duration, 1)}
	unlock, err := clients[0].Lock(ctx, "held")
	if err != nil {
		return nil, err
	}
	var running sync.WaitGroup
	probing, stop := context.WithCancel(ctx)
	defer stop()
	running.Go(func() { k.probe(probing, clients[1]) })
	waiting := &sync.WaitGroup{}
	for i, c := range clients[2:] {
		waiting.Go(func() { k.wait(ctx, i, c) })
		pause(ctx, killedApart)
	}
	pause(ctx, killedBefore)
	if err := b.Cluster.Kill(leader); err != nil {
		return nil, err
	}
	k.died.Store(time.Now().UnixNano())
	values := Values{"survived": 0, "inversions": 0}
	err = k.after(ctx, values, unlock, waiting)
	stop()
	cancel()
	end() // whatever hangs returns now
	running.Wait()
	waiting.Wait()
	values["longest"] = measure.Milliseconds(time.Duration(k.longest.Load()))
	return values, errors.Join(err, b.Cluster.Restart(leader), b.Ready(context.WithoutCancel(ctx)))
}

// after waits for the next lock, then gives the held one back and counts who is served.
func (k *killed) after(ctx context.Context, values Values, unlock peer.Unlock, waiting *sync.WaitGroup) error {
	select {
	case d := <-k.next:
		values["next"] = measure.Milliseconds(d)
	case <-ctx.Done():
		return fmt.Errorf("nobody got a lock in %v", killedPatience)
	}
	k.mu.Lock()
	values["early"] = float64(len(k.order)) // served while the lock was held: it did not survive
	k.mu.Unlock()
	if err := unlock(ctx); err == nil {
		values["survived"] = 1
	}
	released := time.Now()
	served := make(chan struct{})
	go func() { // ends with the waiters, whose clients the caller closes
		waiting.Wait()
		close(served)
	}()
	select {
	case <-served:
	case <-ctx.Done():
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	values["served"] = float64(len(k.order))
	values["serving"] = measure.Milliseconds(time.Since(released))
	values["twice"] = float64(k.twice)
	for i := 1; i < len(k.order); i++ {
		if k.order[i] < k.order[i-1] {
			values["inversions"]++
		}
	}
	return nil
}

// probe locks and unlocks a key of its own, and tells how long after the death it first had it again.
func (k *killed) probe(ctx context.Context, c peer.Client) {
	told := false
	for ctx.Err() == nil {
		asked := time.Now()
		unlock, err := c.Lock(ctx, "probe")
		had := time.Now()
		if ctx.Err() != nil {
			return
		}
		k.longest.Store(max(k.longest.Load(), int64(had.Sub(asked))))
		if err != nil {
			pause(ctx, errorPause)
			continue
		}
		// An answer that was on its way when the leader died does not count.
		died := k.died.Load()
		after := time.Duration(had.UnixNano() - died)
		if !told && died != 0 && (asked.UnixNano() > died || after > killedApart) {
			told = true
			k.next <- after
		}
		_ = unlock(ctx) // if it failed, the next attempt tells
	}
}

func (k *killed) wait(ctx context.Context, i int, c peer.Client) {
	var unlock peer.Unlock
	for {
		var err error
		if unlock, err = c.Lock(ctx, "held"); err == nil {
			break
		}
		if ctx.Err() != nil {
			return
		}
		pause(ctx, errorPause) // its place is lost, and the order will tell
	}
	k.mu.Lock()
	k.order = append(k.order, i)
	k.inside++
	if k.inside > 1 {
		k.twice++
	}
	k.mu.Unlock()
	pause(ctx, killedHold)
	k.mu.Lock()
	k.inside--
	k.mu.Unlock()
	_ = unlock(ctx)
}
