package client

import (
	"context"
	"encoding/json"
	"errors"
	"time"
	"unicode/utf8"

	"zamok/api/zamokpb"
)

// Lock waits in line for a lock, for as long as ctx allows. It continues to wait while no node can
// be reached, and logs that once. A client that has never reached a node fails at once with
// ErrUnavailable if every endpoint refuses the connection; so does every other call.
//
// If ctx ends first, the error wraps ctx.Err() and ErrNotAcquired. If the cluster could not be
// reached, it wraps ErrUnavailable instead, with the latest error of every node. WithWait sets a
// limit that the cluster keeps.
//
// A client holds and waits for up to 4096 locks at a time; one more fails with ErrLimit.
func (c *Client) Lock(ctx context.Context, name string, opts ...Option) (*Lock, error) {
	return c.LockAll(ctx, []Item{ExclusiveItem(name)}, opts...)
}

// TryLock takes a lock only if that is possible at once. If not, the error is a *NotAcquiredError,
// which names the holders. With WithWait it does the same as Lock with that option.
func (c *Client) TryLock(ctx context.Context, name string, opts ...Option) (*Lock, error) {
	return c.TryLockAll(ctx, []Item{ExclusiveItem(name)}, opts...)
}

// LockAll waits in line for several locks, which are granted together. While it waits, it blocks
// later requests for each of them.
func (c *Client) LockAll(ctx context.Context, items []Item, opts ...Option) (*Lock, error) {
	return c.acquire(ctx, newRequest(items, opts))
}

// TryLockAll takes several locks, if all are available at once.
func (c *Client) TryLockAll(ctx context.Context, items []Item, opts ...Option) (*Lock, error) {
	return c.LockAll(ctx, items, append([]Option{WithWait(0)}, opts...)...)
}

// acquire requests a lock until there is a final answer. It repeats the request only if the
// previous one ended without a lock: because the session ended, or because the grant ended before
// it was handed over. The latter can happen each time if the cluster is too far away for the
// maximum hold, so acquire backs off then. It waits for the cluster to end a wait with a limit
// until RequestTimeout after that limit.
func (c *Client) acquire(ctx context.Context, r *request) (*Lock, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	if r.wait != unlimited {
		r.waitUntil = time.Now().Add(r.wait)
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, r.waitUntil.Add(c.cfg.RequestTimeout),
			errRequestTimeout)
		defer cancel()
	}
	var retry backoff
	for {
		if ctx.Err() != nil {
			return nil, &NotAcquiredError{Names: names(r.items), cause: contextEnd(ctx)}
		}
		s, err := c.liveSession()
		if err != nil {
			return nil, err
		}
		lock, err := s.enqueue(r).wait(ctx, r)
		switch {
		case errors.Is(err, errTooLate):
			if retry == (backoff{}) {
				c.log.Warn("zamok: the maximum hold passed before the lock could be returned; "+
					"acquiring again", "locks", names(r.items), "max hold", r.maxHold)
			}
			retry.wait(ctx)
		case !errors.Is(err, errRetryInNewSession):
			return lock, err
		}
	}
}

// With these errors an acquisition has ended without a lock, and is requested again: errTooLate
// after a grant, errRetryInNewSession without one.
var (
	errRetryInNewSession = errors.New("request the lock again in a new session")
	errTooLate           = errors.New("request the lock again later")
)

// wait waits for the end of an acquisition. If ctx ends first, it cancels the acquisition. While
// the session is attached, a wait in line ends at once. In three cases the outcome of what was sent
// is unknown: there is no stream, the call was a TryLock, or the cluster did not end a wait with a
// limit in time.
func (t *ticket) wait(ctx context.Context, r *request) (lock *Lock, err error) {
	s := t.s
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		done := t.await(ctx, func() bool {
			if t.state == ticketGranted { // reading the clocks costs more than the rest
				now := s.c.clock.Now()
				s.checkDeadlines(now)
				lock = t.handOver(now)
			}
			return lock != nil || t.failure != nil || t.position != nil && ctx.Err() == nil
		})
		switch {
		case lock != nil:
			return lock, nil
		case t.failure != nil:
			return nil, t.failure
		case !done:
			t.giveUp(nil)
			switch {
			case s.stream != nil && r.wait != 0 && context.Cause(ctx) != errRequestTimeout:
				return nil, &NotAcquiredError{Names: names(r.items), cause: contextEnd(ctx)}
			case t.state == ticketEnded:
				return nil, s.c.nodes.unavailable(NotDone, contextEnd(ctx))
			}
			return nil, t.unconfirmed(s.c.nodes.unavailable(Unknown, contextEnd(ctx)))
		}
		position := *t.position
		t.position = nil
		func() {
			s.mu.Unlock()
			defer s.mu.Lock() // also if it panics
			r.onPosition(position)
		}()
	}
}

// await waits until done reports true, or ctx ends first. Its caller has the mutex, which is free
// meanwhile.
func (t *ticket) await(ctx context.Context, done func() bool) bool {
	for !done() {
		changed, ended := t.changes(), false
		t.s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			ended = true
		}
		t.s.mu.Lock()
		if ended {
			return false
		}
	}
	return true
}

// Do runs f under a lock. The context of f ends when the lock is lost, with the loss as its cause.
// The error joins the error of f and the error of the release; ErrLost is in it if the lock was
// lost before f returned.
func (c *Client) Do(ctx context.Context, name string, f func(context.Context, *Lock) error,
	opts ...Option) (err error) {
	lock, err := c.Lock(ctx, name, opts...)
	if err != nil {
		return err
	}
	inside, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(lock.Context(), func() { cancel(lock.Err()) })
	defer func() { // also if f panics: the program may recover, and other callers wait
		stop()
		cancel(nil)
		err = errors.Join(err, lock.Unlock(ctx))
	}()
	return f(inside, lock)
}

// withRequestTimeout bounds a wait for the cluster by the request timeout. It also works with a
// context that has ended: the end of the work must not prevent the release of the lock that
// protected it.
func (c *Client) withRequestTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	timeout := c.cfg.RequestTimeout
	if ctx.Err() != nil {
		ctx, timeout = context.WithoutCancel(ctx), min(timeout, endedContextTimeout)
	}
	return context.WithTimeoutCause(ctx, timeout, errRequestTimeout)
}

// endedContextTimeout is how long Unlock waits for the cluster when its context has ended already.
const endedContextTimeout = time.Second

// Item is one lock of an acquisition, made by ExclusiveItem, SharedItem or PermitsItem.
type Item struct {
	name        string
	mode        zamokpb.Mode
	permits, of uint32
}

// Name is the lock's name.
func (i Item) Name() string { return i.name }

// ExclusiveItem makes an Item that excludes all other holders.
func ExclusiveItem(name string) Item { return Item{name: name, mode: zamokpb.Mode_MODE_EXCLUSIVE} }

// SharedItem makes an Item that admits other shared holders.
func SharedItem(name string) Item { return Item{name: name, mode: zamokpb.Mode_MODE_SHARED} }

// PermitsItem makes an Item of n permits; the lock has `of` permits in all. All its users must
// give the same `of`.
func PermitsItem(name string, n, of uint32) Item {
	return Item{name: name, mode: zamokpb.Mode_MODE_PERMITS, permits: n, of: of}
}

// Mode is how a lock is held.
type Mode uint8

const (
	ModeExclusive Mode = 1 + iota
	ModeShared
	ModePermits
)

func (m Mode) String() string {
	return [...]string{"unknown", "exclusive", "shared", "permits"}[min(m, ModePermits)]
}

// Mode is how the item is to be held; Permits and Of are its permits.
func (i Item) Mode() Mode      { return Mode(i.mode) }
func (i Item) Permits() uint32 { return i.permits }
func (i Item) Of() uint32      { return i.of }

type itemJSON struct {
	Name    string `json:"name"`
	Mode    string `json:"mode"`
	Permits uint32 `json:"permits,omitempty"`
	Of      uint32 `json:"of,omitempty"`
}

// MarshalJSON writes an Item as it is stored with a Reservation.
func (i Item) MarshalJSON() ([]byte, error) {
	return json.Marshal(itemJSON{i.name, i.Mode().String(), i.permits, i.of})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (i *Item) UnmarshalJSON(text []byte) error {
	var j itemJSON
	if err := json.Unmarshal(text, &j); err != nil {
		return err
	}
	for mode := ModeExclusive; mode <= ModePermits; mode++ {
		if mode.String() == j.Mode {
			*i = Item{j.Name, zamokpb.Mode(mode), j.Permits, j.Of}
			return nil
		}
	}
	return invalid("mode", "%q is none", j.Mode)
}

func itemInfo(i *zamokpb.Item) Item {
	return Item{name: i.GetName(), mode: i.GetMode(), permits: i.GetPermits(), of: i.GetOf()}
}

// Option changes one acquisition.
type Option func(*request)

// request is what a caller wants. It stays the same however often it is sent.
type request struct {
	items      []Item
	wait       time.Duration // in line; 0 = TryLock, unlimited = Lock
	waitUntil  time.Time     // where wait ends, counted from the call
	owner      string
	meta       []byte
	maxHold    time.Duration
	onPosition func(Position)
}

// Shared makes the lock of a Lock or TryLock shared.
func Shared() Option { return func(r *request) { r.each(SharedItem) } }

// Permits makes the lock of a Lock or TryLock n of its permits: see PermitsItem.
func Permits(n, of uint32) Option {
	return func(r *request) { r.each(func(name string) Item { return PermitsItem(name, n, of) }) }
}

func (r *request) each(f func(string) Item) {
	for i := range r.items {
		r.items[i] = f(r.items[i].name)
	}
}

// WithOwner names a logical thread of this client, for the detection of deadlocks. If an
// acquisition would wait, through others with owners, for a lock that its own owner holds, it fails
// with ErrDeadlock. An owner waits for one acquisition at a time.
func WithOwner(name string) Option { return func(r *request) { r.owner = name } }

// WithMeta sets up to 4 KiB of text for people who look at the holders of a lock.
func WithMeta(data []byte) Option { return func(r *request) { r.meta = data } }

// WithMaxHold ends the grant d after the cluster made it, even if the client still renews its
// session. 0 = never; otherwise d is at least MaxHoldMin.
//
// The client ends the hold earlier than the cluster, because their clocks may run at different
// rates: by a twentieth of d, at least 200 ms, and by the time that the confirmation from which it
// is counted took to the cluster. Of 250 ms less than 50 are left, of 2 s less than 1.8 s, of a
// minute less than 57 s. If the session's last confirmation is so old that it would cost more than
// a tenth of that, Lock returns one round trip later, with a new one. If even that leaves nothing,
// the cluster is too far away for d: Lock logs that, gives the grant back, and requests the lock
// again, after delays that grow to half a second, until its context ends.
func WithMaxHold(d time.Duration) Option { return func(r *request) { r.maxHold = d } }

const (
	unlimited time.Duration = -1
	waitMax                 = 366 * 24 * time.Hour // the longest wait that the cluster accepts
)

// WithWait limits the wait in line to d, counted from the call; 0 or less = do not wait, which is
// what TryLock does without this option.
//
// The cluster keeps the limit. Its time stands still while there is no leader. When the limit has
// passed, the cluster takes the request out of the queue, and the error is a *NotAcquiredError that
// wraps no context's error: nothing is left of the request. If the cluster has not confirmed that
// RequestTimeout after the limit, the call gives up, as TryLock does. Then the error is
// ErrUnavailable, an *UnconfirmedError if the request had been sent, and the request is cancelled
// in the background until the cluster confirms that. Until then the lock may still be granted, and
// is given back. A context that ends earlier ends the wait as it ends that of any Lock.
func WithWait(d time.Duration) Option {
	return func(r *request) { r.wait = min(max(d, 0), waitMax) }
}

// OnPosition calls f with the place in the queue, when it is known and when it has changed: at most
// once a second, and less often while many requests are ahead. The goroutine that waits calls f, so
// a slow f delays only its own call.
func OnPosition(f func(Position)) Option { return func(r *request) { r.onPosition = f } }

// Position is a place in a queue.
type Position struct {
	Name string // the first lock for which the acquisition waits
	// waiters before this one: exact up to 100; more may count some that left the queue meanwhile
	Ahead    int
	Blockers []Blocker
}

func newRequest(items []Item, opts []Option) *request {
	r := &request{items: append([]Item(nil), items...), wait: unlimited}
	for _, o := range opts {
		o(r)
	}
	return r
}

// Limits of the cluster. The cluster checks every field itself; the client checks only what would
// make the frame invalid in which it is sent together with other requests.
const (
	nameBytesMax  = 512
	ownerBytesMax = 256
	metaBytesMax  = 4096
	itemsMax      = 64
)

func (r *request) check() error {
	text := func(field, s string, most int) error {
		switch {
		case len(s) > most:
			return invalid(field, "%d bytes, at most %d", len(s), most)
		case !utf8.ValidString(s):
			return invalid(field, "%q is not UTF-8", s)
		}
		return nil
	}
	if len(r.items) == 0 || len(r.items) > itemsMax {
		return invalid("items", "%d locks, 1 to %d at once", len(r.items), itemsMax)
	}
	for _, item := range r.items {
		if item.name == "" {
			return invalid("name", "is empty; nothing was done")
		}
		if err := text("name", item.name, nameBytesMax); err != nil {
			return err
		}
	}
	if r.maxHold != 0 && r.maxHold < MaxHoldMin {
		return invalid("max_hold", "%v is too short to be held, the shortest possible is %v",
			r.maxHold, MaxHoldMin)
	}
	if len(r.meta) > metaBytesMax {
		return invalid("meta", "%d bytes, at most %d", len(r.meta), metaBytesMax)
	}
	return text("owner", r.owner, ownerBytesMax)
}

func names(items []Item) []string { return each(items, Item.Name) }

// wire is the request as it is sent with a ticket's number.
func (r *request) wire(number uint64) *zamokpb.Acquire {
	a := &zamokpb.Acquire{
		Ticket: number, Wait: int64(unlimited), MaxHold: int64(r.maxHold),
		Owner: r.owner, Meta: r.meta, Positions: r.onPosition != nil,
		Items: each(r.items, func(i Item) *zamokpb.Item {
			return &zamokpb.Item{Name: i.name, Mode: i.mode, Permits: i.permits, Of: i.of}
		}),
	}
	if r.wait != unlimited { // the rest of it: it may be sent late, and again
		a.Wait = int64(max(time.Until(r.waitUntil), 0))
	}
	return a
}
