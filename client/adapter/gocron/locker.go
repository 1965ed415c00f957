package gocron

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/go-co-op/gocron/v2"

	"zamok/client"
)

// DefaultHold is the Hold of a Locker that names none.
const DefaultHold = 5 * time.Second

// Locker is a gocron.Locker. Only Client is required. Do not change it while it is used.
type Locker struct {
	Client *client.Client
	Prefix string // stands before the job's name
	// Hold is how long a lock stays held at least: more than twice the difference between the
	// schedulers' clocks, less than the shortest interval of a job, and less than half of the
	// client's ttl, so that the end of a program does not cut it short; 0 = DefaultHold.
	Hold    time.Duration
	Options []client.Option // of each acquisition
	// OnLost is called when the lock of a job that runs is lost; nil = a warning to slog.Default().
	OnLost func(job string, err error)
}

var _ gocron.Locker = (*Locker)(nil)

// Lock takes the lock of a job if that is possible at once; otherwise the scheduler skips this run.
func (l *Locker) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	hold := cmp.Or(l.Hold, DefaultHold)
	ctx, cancel := context.WithTimeout(ctx, hold/2)
	defer cancel()
	lock, err := l.Client.TryLock(ctx, l.Prefix+job, l.Options...)
	if err != nil {
		return nil, err
	}
	r := &run{lock: lock, until: time.Now().Add(hold)}
	r.finished = context.AfterFunc(lock.Context(), func() { l.lost(job, lock.Err()) })
	return r, nil
}

func (l *Locker) lost(job string, err error) {
	if l.OnLost != nil {
		l.OnLost(job, err)
		return
	}
	slog.Warn("zamok: the lock of a job was lost while it ran; it may have run twice", "job", job,
		"error", err)
}

// run is a job that runs under its lock.
type run struct {
	lock     *client.Lock
	until    time.Time
	finished func() bool
}

// Unlock releases the lock when its minimum hold is over, which may be after it returns. A release
// that fails continues in the background.
func (r *run) Unlock(ctx context.Context) error {
	r.finished()
	if rest := time.Until(r.until); rest > 0 {
		time.AfterFunc(rest, func() { _ = r.lock.Unlock(context.Background()) })
		return nil
	}
	return r.lock.Unlock(ctx)
}
