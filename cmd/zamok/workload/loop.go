package workload

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
	Lock    func(ctx context.Context, worker int, key string) (unlock func(context.Context) error, err error)
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
	// errorPause keeps a worker whose calls fail at once from turning into a busy loop.
	errorPause = 10 * time.Millisecond
	// endPatience is for workers that still wait when the window is over, and once more after their context ended.
	endPatience   = 20 * time.Second
	abandonPeriod = 3 * time.Second
)

// run is one run of a loop.
type run struct {
	*Loop
	began  time.Time
	oneKey bool

	holders, releasedAt               atomic.Int64 // of the one key; releasedAt is 0 before the first release
	granted, cycles, errors, overlaps atomic.Uint64

	mu     sync.Mutex
	result Result // its histograms have no need of mu
}

// Run runs the loop until the window is over and all workers have returned, or ctx has ended.
func (l *Loop) Run(ctx context.Context) *Result {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &run{Loop: l, began: time.Now(), oneKey: l.Workers > 1 && l.Key(0) == l.Key(l.Workers-1), result: Result{Window: l.Window}}
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
	// Not all at once: a busy machine sends a burst in any order, and fairness is judged by the order of requests.
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
			Sleep(ctx, errorPause)
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
	measured = g.Acquired >= r.Warmup && g.Acquired <= end // whenever it was requested: a wait may exceed the window
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

// Drain waits for workers: first for a while, then with their context ended, then after abandon, which must make
// every call return.
func Drain(workers *sync.WaitGroup, cancel context.CancelFunc, abandon func()) {
	done := make(chan struct{})
	go func() { // ends with the last worker
		workers.Wait()
		close(done)
	}()
	for _, step := range []struct {
		patience time.Duration
		then     func()
	}{{endPatience, cancel}, {abandonPeriod, abandon}} {
		timer := time.NewTimer(step.patience)
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

// Sleep waits for d, or until ctx ends.
func Sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
