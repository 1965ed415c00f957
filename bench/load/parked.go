package load

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"zamok/bench/driver"
	"zamok/bench/measure"
	"zamok/cmd/zamok/loadgen"
)

const (
	parkedLocks = 100 // held, with waiters
	// long, because processor time is counted in steps of 10 ms
	parkedObserveMin   = 5 * time.Second
	parkedServeTimeout = 20 * time.Second // for all grants after the release
	parkedEnqueueTime  = 3 * time.Second  // and half a millisecond more for each waiter
)

// Parked lets waiters wait for held locks, and measures what waiting costs, and whether all still
// wait in the end. Then it releases the locks, and counts the waiters that are granted one.
func (b *Bench) Parked(ctx context.Context, waiters, sessions int) (Values, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	perSession := waiters / sessions
	empty, err := b.Cluster.Usage()
	if err != nil {
		return nil, err
	}
	release, err := b.holdParkedLocks(ctx)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	clients, end, err := b.openMany(ctx, sessions, b.session(perSession))
	defer end()
	values := Values{"opening": time.Since(began).Seconds(),
		"unopened": float64(sessions - len(clients))}
	if len(clients) == 0 {
		release()
		return nil, err
	}
	var served, lost atomic.Int64
	var running sync.WaitGroup
	for s, c := range clients {
		for w := range perSession {
			// A session waits for each lock once: for some systems a second wait would be the same
			// waiter.
			key := parkedKey((s + w) % parkedLocks)
			running.Go(func() {
				if unlock, err := c.Lock(ctx, key); err != nil || unlock(ctx) != nil {
					lost.Add(1)
					return
				}
				served.Add(1)
			})
		}
	}
	loadgen.Sleep(ctx, parkedEnqueueTime+time.Duration(waiters)*time.Millisecond/2)
	before, err := b.Cluster.Usage()
	if err != nil {
		return nil, err
	}
	observed := time.Now()
	loadgen.Sleep(ctx, max(2*b.Window, parkedObserveMin))
	after, err := b.Cluster.Usage()
	if err != nil {
		return nil, err
	}
	values["core"] = (after.CPU - before.CPU) / time.Since(observed).Seconds()
	if grown := after.Memory - empty.Memory; grown > 0 { // else the servers have freed memory
		values["memory_each"] = grown / float64(waiters)
	}
	values["early"] = float64(served.Load()) // while all locks are held
	values["lost"] = float64(lost.Load())
	serving := time.Now()
	release()
	awaitServed(ctx, &running, parkedServeTimeout)
	values["served"] = float64(served.Load())
	values["serving"] = time.Since(serving).Seconds()
	cancel()
	end()
	running.Wait()
	return values, nil
}

// awaitServed waits until all waiters have returned, or the time is over.
func awaitServed(ctx context.Context, waiters *sync.WaitGroup, timeout time.Duration) {
	ctx, done := context.WithTimeout(ctx, timeout)
	go func() { // ends when the waiters' clients are closed, at the latest
		waiters.Wait()
		done()
	}()
	<-ctx.Done()
}

func parkedKey(i int) string { return fmt.Sprintf("parked-%d", i) }

// holdParkedLocks acquires the locks with one client. release releases them and closes the client.
func (b *Bench) holdParkedLocks(ctx context.Context) (release func(), err error) {
	c, err := b.open(ctx, b.session(parkedLocks))
	if err != nil {
		return nil, err
	}
	var unlocks []driver.Unlock
	release = func() {
		for _, unlock := range unlocks {
			_ = unlock(ctx) // a lost lock is free already
		}
		_ = c.Close()
	}
	for i := range parkedLocks {
		unlock, err := c.Lock(ctx, parkedKey(i))
		if err != nil {
			release()
			return nil, err
		}
		unlocks = append(unlocks, unlock)
	}
	return release, nil
}

// HolderKilled kills the process that holds a lock, and measures when the lock is granted to
// another client.
func (b *Bench) HolderKilled(ctx context.Context, release time.Duration) (Values, error) {
	key := fmt.Sprintf("dead-%d", release)
	kill, err := startHolder(ctx, b.System.Name, key,
		driver.Session{Endpoints: b.Cluster.Endpoints, TTL: b.TTL, Width: 1, Release: release})
	if err != nil {
		return nil, err
	}
	defer kill()
	c, err := b.open(ctx, b.session(1))
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	acquired := make(chan error, 1)
	go func() { // ends when the lock is granted or c is closed
		unlock, err := c.Lock(ctx, key)
		if err == nil {
			err = unlock(ctx)
		}
		acquired <- err
	}()
	loadgen.Sleep(ctx, holderLifetime)
	if len(acquired) > 0 {
		return nil, fmt.Errorf("a lock that is held was granted (%v)", <-acquired)
	}
	kill()
	died := time.Now()
	timer := time.NewTimer(6 * b.TTL)
	defer timer.Stop()
	select {
	case err := <-acquired:
		return Values{"freed": measure.Milliseconds(time.Since(died))}, err
	case <-timer.C:
		return nil, fmt.Errorf("the lock was not free %v after its holder's death", 6*b.TTL)
	}
}

// holderLifetime is how long the holder lives: long enough for a renewal, so that it dies at some
// moment of its lease, later than the beginning.
const holderLifetime = 4500 * time.Millisecond
