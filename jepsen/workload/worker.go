package workload

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"zamok/client"
	"zamok/client/admin"
	"zamok/jepsen/check"
)

const (
	// TTLMax is the longest ttl of a session.
	TTLMax           = 10 * time.Second
	permitsPerPool   = 3
	lossPollInterval = 100 * time.Millisecond
	workAfterLoss    = time.Second // how long a worker that ignores losses continues after one
)

// ClientConfig configures the i-th client. A change of leader may take longer than the shortest
// ttl.
func ClientConfig(i int) (cfg client.Config) {
	cfg.TTL = []time.Duration{4 * time.Second, 5 * time.Second, TTLMax}[i%3]
	switch i % 4 {
	case 1:
		cfg.LockDelay = 500 * time.Millisecond
	case 3:
		cfg.ReleaseOnDisconnect = time.Second
	}
	return cfg
}

// Setting is what the workers of one run have in common.
type Setting struct {
	// how many locks there are: m0, m1, … and p0, p1, …
	Mutexes, Pools int
	Elected        string                         // a lock that workers campaign for; empty = none
	WaitMax        time.Duration                  // of a wait that is bounded
	ThinkMax       time.Duration                  // between two steps
	HoldTime       func(*rand.Rand) time.Duration // how long a lock is kept
}

// Worker is one goroutine of a program. It makes random calls.
type Worker struct {
	*client.Client
	*rand.Rand
	*Recorder
	Setting
	Label  string // of its client, in the history
	Owner  string
	TTL    time.Duration
	Ctx    context.Context   // ends with its process, which then does and sees nothing
	Ending context.Context   // ends when nothing new is to begin
	Write  func(check.Write) // writes to what a lock guards
	// ClockRate is how fast the clock of its process goes; 0 = as that of the history.
	ClockRate float64
	// Paused returns what is closed at the end of a pause of its process; nil = it is not paused.
	Paused func() <-chan struct{}
	// IgnoresLoss: it writes on after it has lost its lock. The resource rejects those writes.
	IgnoresLoss bool
}

// Run works until nothing new is to begin.
func (w *Worker) Run() {
	for w.Ending.Err() == nil && w.Ctx.Err() == nil {
		w.awaitResume()
		w.step()
		Sleep(w.Ctx, UpTo(w.Rand, w.ThinkMax))
	}
}

// Sleep waits for d and returns true, or returns false if ctx ends before.
func Sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// UpTo is a random duration below most.
func UpTo(random *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(random.Int64N(int64(most)))
}

func (w *Worker) awaitResume() {
	if w.Paused != nil {
		if resumed := w.Paused(); resumed != nil {
			<-resumed
		}
	}
}

func (w *Worker) isPaused() bool { return w.Paused != nil && w.Paused() != nil }

// step makes one random call. If that acquires a lock, step holds and releases it.
func (w *Worker) step() {
	switch w.IntN(10) {
	case 0:
		w.ReadTime()
	case 1, 2:
		w.Inspect(w.Mutex())
	default:
		if l, h := w.acquire(w.IntN(2) == 0); l != nil {
			w.hold(l, h, 0)
		}
	}
}

// Mutex is the name of a random mutex.
func (w *Worker) Mutex() string { return fmt.Sprint("m", w.IntN(w.Mutexes)) }

// randomRequest chooses the locks and the options of an acquisition.
func (w *Worker) randomRequest() (items []client.Item, opts []client.Option) {
	switch n := w.IntN(10); {
	case n < 1 && w.Elected != "":
		items = append(items, client.ExclusiveItem(w.Elected))
	case n < 4:
		items = append(items, client.ExclusiveItem(w.Mutex()))
	case n < 6:
		items = append(items, client.SharedItem(w.Mutex()))
	case n < 8:
		items = append(items, client.PermitsItem(fmt.Sprint("p", w.IntN(w.Pools)), 1+w.Uint32N(2),
			permitsPerPool))
	default:
		for _, i := range w.Perm(w.Mutexes)[:2+w.IntN(2)] {
			item := client.ExclusiveItem(fmt.Sprint("m", i))
			if w.IntN(3) == 0 {
				item = client.SharedItem(item.Name())
			}
			items = append(items, item)
		}
	}
	if w.IntN(8) == 0 {
		opts = append(opts, client.WithMaxHold(time.Second+UpTo(w.Rand, time.Second)))
	}
	if w.IntN(4) == 0 {
		opts = append(opts, client.WithMeta([]byte(w.Owner)))
	}
	if w.IntN(2) == 0 {
		opts = append(opts, client.WithOwner(w.Owner))
	}
	return items, opts
}

// acquire makes a random request.
func (w *Worker) acquire(bounded bool) (*client.Lock, *Hold) {
	items, opts := w.randomRequest()
	kind := check.OpLock
	if w.IntN(3) == 0 {
		kind = check.OpTryLock
	}
	ctx, cancel := w.Ctx, context.CancelFunc(func() {})
	if bounded {
		ctx, cancel = context.WithTimeout(ctx, UpTo(w.Rand, w.WaitMax))
	}
	defer cancel()
	return w.lock(ctx, kind, items, opts)
}

// Lock acquires a lock. It returns nil if the lock was not granted.
func (w *Worker) Lock(name string) (*client.Lock, *Hold) {
	return w.lock(w.Ctx, check.OpLock, []client.Item{client.ExclusiveItem(name)}, nil)
}

func (w *Worker) lock(ctx context.Context, kind check.OpKind, items []client.Item,
	opts []client.Option) (l *client.Lock, h *Hold) {
	lockFunc := w.LockAll
	switch {
	case kind == check.OpTryLock:
		lockFunc = w.TryLockAll
	case items[0].Name() == w.Elected:
		lockFunc = w.campaign
	}
	_ = w.Call(check.Op{Client: w.Label, Kind: kind, Items: check.ItemsOf(items)},
		func(op *check.Op) (err error) {
			var queued time.Duration
			if kind == check.OpLock && w.IntN(4) > 0 { // some wait without their position
				opts = append(opts, client.OnPosition(func(client.Position) {
					queued = cmp.Or(queued, w.HistoryTime())
				}))
			}
			l, err = lockFunc(ctx, items, opts...)
			w.awaitResume() // it may be paused before it sees the answer
			if err != nil {
				return err
			}
			op.Ref, op.Token, op.Queued = check.Ref{Session: l.Session(), Ticket: l.Ticket()},
				uint64(l.Token()), queued
			h = w.StartHold(check.Hold{Client: w.Label, Ref: op.Ref, Token: op.Token,
				Items: op.Items})
			return nil
		})
	return l, h
}

// campaign runs for the election, which is an acquisition of its lock.
func (w *Worker) campaign(ctx context.Context, items []client.Item,
	opts ...client.Option) (*client.Lock, error) {
	return w.Client.Election(items[0].Name()).Campaign(ctx, []byte(w.Owner), opts...)
}

// hold keeps a grant for a while, writes under it, and releases it. depth is how many grants the
// worker holds already.
func (w *Worker) hold(l *client.Lock, h *Hold, depth int) {
	until := time.Now().Add(w.HoldTime(w.Rand))
	isPermits := func(it check.Item) bool { return it.Mode == check.Permits }
	hasPermits := slices.ContainsFunc(h.Items, isPermits)
	shared, lost, poll := false, l.Lost(), time.NewTimer(lossPollInterval)
	defer poll.Stop()
	reported := make(chan struct{})
	stop := context.AfterFunc(l.Context(), func() {
		defer close(reported)
		h.Finish(check.Lost, check.LossReason(l.Err()))
	})
	for first := true; w.Ctx.Err() == nil &&
		(first || time.Now().Before(until) && w.Ending.Err() == nil); first = false {
		if l.Err() != nil && !w.IgnoresLoss {
			break
		}
		w.recordRenewal(l)
		// A program that is paused between the check and the write writes when another may hold the
		// lock.
		w.awaitResume()
		w.write(h, shared)
		switch n := w.IntN(30); {
		case n < 2:
			w.check(h)
		case n == 2 && !hasPermits && !shared:
			shared = w.downgrade(l, h)
		case n == 3 && depth == 0:
			// Unless both sides have an owner this may be an undetected deadlock: hence bounded.
			if inner, held := w.acquire(true); inner != nil {
				w.hold(inner, held, depth+1)
			}
		}
		poll.Reset(min(time.Until(until), lossPollInterval))
		select {
		case <-lost:
			lost, until = nil, time.Now().Add(workAfterLoss) // if it ignores the loss
		case <-poll.C:
		case <-w.Ctx.Done():
		}
	}
	w.Unlock(l, h)
	if !stop() {
		<-reported
	}
}

// Unlock records how a hold ended, lost or unlocked, and releases the lock.
func (w *Worker) Unlock(l *client.Lock, h *Hold) {
	if w.Ctx.Err() != nil {
		return
	}
	if err := l.Err(); err != nil {
		h.Finish(check.Lost, check.LossReason(err))
	} else {
		h.Finish(check.Unlocked, "")
	}
	op := check.Op{Client: w.Label, Kind: check.OpUnlock, Ref: h.Ref, Items: h.Items}
	_ = w.Call(op, func(*check.Op) error { return l.Unlock(w.Ctx) })
}

// write writes to the resources that the held mutexes guard.
func (w *Worker) write(h *Hold, shared bool) {
	for _, it := range h.Items {
		if it.Mode != check.Permits && w.Ctx.Err() == nil {
			w.Write(check.Write{Resource: it.Name, Client: w.Label, Token: h.Token,
				Shared: shared || it.Mode == check.Shared})
		}
	}
}

func (w *Worker) downgrade(l *client.Lock, h *Hold) bool {
	if !slices.ContainsFunc(h.Items,
		func(it check.Item) bool { return it.Mode == check.Exclusive }) {
		return false
	}
	h.downgrade()
	op := check.Op{Client: w.Label, Kind: check.OpDowngrade, Ref: h.Ref, Items: h.Items}
	_ = w.Call(op, func(*check.Op) error { return l.Downgrade(w.Ctx) })
	return true
}

func (w *Worker) check(h *Hold) {
	it := h.Items[w.IntN(len(h.Items))]
	op := check.Op{Client: w.Label, Kind: check.OpCheck, Ref: h.Ref, Items: []check.Item{it},
		Token: h.Token}
	_ = w.Call(op, func(op *check.Op) error {
		held, at, err := w.Check(w.Ctx, client.Grant{
			Name: it.Name, Token: client.Token(h.Token), Session: h.Session, Ticket: h.Ticket,
		})
		op.Held = held
		stamp(op, at)
		return err
	})
}

func stamp(op *check.Op, at client.Stamp) {
	op.Term, op.Index, op.Time = at.Term, at.Index, at.Time
}

// ReadTime reads cluster time, and reports whether there was an answer.
func (w *Worker) ReadTime() bool {
	return w.Call(check.Op{Client: w.Label, Kind: check.OpNow}, func(op *check.Op) error {
		at, err := admin.New(w.Client).Now(w.Ctx)
		stamp(op, at)
		return err
	}) == nil
}

// AwaitRead reads cluster time until a read is answered: a busy machine may exceed the time limit
// of one call.
func (w *Worker) AwaitRead() {
	for !w.ReadTime() && Sleep(w.Ctx, 100*time.Millisecond) {
	}
}

// Inspect reads a lock. It returns nil if there was no answer.
func (w *Worker) Inspect(name string) (d *client.LockDetail) {
	op := check.Op{Client: w.Label, Kind: check.OpGet, Items: []check.Item{{Name: name}}}
	_ = w.Call(op, func(op *check.Op) (err error) {
		if d, err = w.Get(w.Ctx, name, 0); err != nil {
			return err
		}
		stamp(op, d.Stamp)
		for _, held := range d.Held {
			op.Holders = append(op.Holders, check.Ref{Session: held.Session, Ticket: held.Ticket})
		}
		return nil
	})
	return d
}

// Interfere reads a lock as an operator does. One time in ratio it expires the session of a holder
// or force-releases the lock.
func (w *Worker) Interfere(name string, ratio int) {
	d := w.Inspect(name)
	if d == nil || len(d.Held) == 0 || w.IntN(ratio) != 0 {
		return
	}
	held := d.Held[0]
	if w.IntN(3) == 0 {
		op := check.Op{Client: w.Label, Kind: check.OpExpireSession,
			Ref: check.Ref{Session: held.Session}}
		_ = w.Call(op, func(*check.Op) error {
			return admin.New(w.Client).ExpireSession(w.Ctx, held.Session, "a test")
		})
		return
	}
	op := check.Op{Client: w.Label, Kind: check.OpForceRelease, Items: []check.Item{{Name: d.Name}},
		Token: uint64(held.Token)}
	_ = w.Call(op, func(*check.Op) error {
		_, err := admin.New(w.Client).ForceRelease(w.Ctx, d.Name, held.Token, "a test")
		return err
	})
}

// recordRenewal derives from a handle's deadline when the latest confirmed renewal was sent. It
// records that a little too early, because deadlines are rounded to whole readings of clocks. A
// pause between the two readings here makes it earlier still, which only makes the check more
// lenient.
func (w *Worker) recordRenewal(l *client.Lock) {
	at := w.HistoryTime()
	remaining := time.Until(l.Deadline())
	if w.isPaused() || remaining <= 0 || l.Err() != nil {
		return
	}
	age := time.Duration(float64(w.TTL-check.ClockMargin(w.TTL)-remaining)/cmp.Or(w.ClockRate, 1)) +
		5*time.Millisecond
	w.Put(
		check.Record{Renewal: &check.Renewal{Session: l.Session(), Sent: at - age, Confirmed: at}})
}

// FinalCall is what a client does last: it must succeed.
func (w *Worker) FinalCall() {
	if l, h := w.Lock("last of " + w.Label); l != nil {
		w.write(h, false)
		w.check(h)
		w.Unlock(l, h)
	}
	w.AwaitRead()
}
