package loadgen

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Loop is a closed loop. All fields but Warmup and Abandon are required.
type Loop struct {
	Workers int
	Key     func(worker int) string // the same for all, or another for each
	Lock    func(ctx context.Context, worker int, key string) (unlock func(context.Context) error,
		err error)
	Warmup  time.Duration // runs before Window and is not measured
	Window  time.Duration
	Abandon func() // makes calls return that do not end with their context; nil if there are none
}

// Grant is one acquisition: by which worker, when it was requested and when it was granted.
type Grant struct {
	Worker              int
	Requested, Acquired time.Duration // since the loop began
}

// Result is what a loop measured.
type Result struct {
	Window                       time.Duration
	Granted                      uint64  // inside the window
	Cycles                       uint64  // lock and unlock, also before and after the window
	Grants                       []Grant // inside the window, if all workers had one key
	Lock, Unlock, Cycle, Handoff Histogram
	Errors, Overlaps             uint64
	LastErr                      error // of the last failed call
}

// Rate is grants per second.
func (r *Result) Rate() float64 { return float64(r.Granted) / r.Window.Seconds() }

const (
	// errorDelay is how long a worker waits after a failed call, so that it does not spin.
	errorDelay = 10 * time.Millisecond
	// drainTimeout is for workers that still wait at the end of the window; abandonTimeout is for
	// those that still wait after the end of their context.
	drainTimeout   = 20 * time.Second
	abandonTimeout = 3 * time.Second
)

// run is one run of a loop.
type run struct {
	*Loop
	began  time.Time
	oneKey bool

	// of the one key; releasedAt is 0 before the first release
	holders, releasedAt               atomic.Int64
	granted, cycles, errors, overlaps atomic.Uint64

	mu     sync.Mutex
	result Result // its histograms need no mutex
}

// Run runs the loop until the window is over and all workers have returned, or ctx has ended.
func (l *Loop) Run(ctx context.Context) *Result {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &run{Loop: l, began: time.Now(), oneKey: l.Workers > 1 && l.Key(0) == l.Key(l.Workers-1),
		result: Result{Window: l.Window}}
	var workers sync.WaitGroup
	for i := range l.Workers {
		workers.Go(func() { r.worker(ctx, i) })
	}
	Sleep(ctx, l.Warmup+l.Window)
	Drain(&workers, cancel, l.Abandon)
	r.result.Granted, r.result.Cycles = r.granted.Load(), r.cycles.Load()
	r.result.Errors, r.result.Overlaps = r.errors.Load(), r.overlaps.Load()
	return &r.result
}

func (r *run) worker(ctx context.Context, i int) {
	// One after the other: a busy machine sends a burst in any order, but fairness depends on that
	// order.
	Sleep(ctx, r.Warmup/2*time.Duration(i)/time.Duration(r.Workers))
	var grants []Grant
	for ctx.Err() == nil && time.Since(r.began) < r.Warmup+r.Window {
		g, measured, err := r.cycle(ctx, i)
		if measured && r.oneKey {
			grants = append(grants, g)
		}
		if err != nil && ctx.Err() == nil {
			r.errors.Add(1)
			r.mu.Lock()
			r.result.LastErr = err
			r.mu.Unlock()
			Sleep(ctx, errorDelay)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Grants = slices.Concat(r.result.Grants, grants)
}

func (r *run) cycle(ctx context.Context, i int) (g Grant, measured bool, err error) {
	g = Grant{Worker: i, Requested: time.Since(r.began)}
	unlock, err := r.Lock(ctx, i, r.Key(i))
	if err != nil {
		return g, false, err
	}
	g.Acquired = time.Since(r.began)
	end := r.Warmup + r.Window
	// even if it was requested before: a wait may exceed the window
	measured = g.Acquired >= r.Warmup && g.Acquired <= end
	if r.oneKey {
		if r.holders.Add(1) != 1 {
			r.overlaps.Add(1)
		}
		if released := time.Duration(r.releasedAt.Load()); measured && g.Requested < released {
			r.result.Handoff.Add(g.Acquired - released)
		}
		r.holders.Add(-1)
		r.releasedAt.Store(int64(time.Since(r.began)))
	}
	if err := unlock(ctx); err != nil {
		return g, false, err
	}
	r.cycles.Add(1)
	if !measured {
		return g, false, nil
	}
	r.granted.Add(1)
	r.result.Lock.Add(g.Acquired - g.Requested)
	if done := time.Since(r.began); done <= end {
		r.result.Unlock.Add(done - g.Acquired)
		r.result.Cycle.Add(done - g.Requested)
	}
	return g, true, nil
}

// Drain waits for workers. After a while it ends their context. If that is not enough, it calls
// abandon, which must make every call return.
func Drain(workers *sync.WaitGroup, cancel context.CancelFunc, abandon func()) {
	done := make(chan struct{})
	go func() { // ends with the last worker
		workers.Wait()
		close(done)
	}()
	for _, step := range []struct {
		timeout time.Duration
		then    func()
	}{{drainTimeout, cancel}, {abandonTimeout, abandon}} {
		timer := time.NewTimer(step.timeout)
		defer timer.Stop()
		select {
		case <-done:
			return
		case <-timer.C:
			if step.then != nil {
				step.then()
			}
		}
	}
	<-done
}

// Sleep waits for d and returns true, or returns false if ctx ends before.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
