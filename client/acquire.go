package client

import (
	"context"
	"encoding/json"
	"errors"
	"time"
	"unicode/utf8"

	"zamok/api/zamokpb"
)

// Lock waits in line for a lock, for as long as ctx allows, also while no node can be reached (which is logged once),
// unless this client has never reached one and every endpoint refuses it: then it fails at once with ErrUnavailable, as
// every call does. If ctx ends first, the error wraps ctx.Err(), and ErrNotAcquired, or, if the cluster could not be
// reached, ErrUnavailable with the latest error of every node. WithWaitTimeout is a limit that the cluster keeps.
//
// A client holds and waits for up to 4096 locks at a time; more is an ErrLimit.
func (c *Client) Lock(ctx context.Context, name string, opts ...Option) (*Lock, error) {
	return c.LockAll(ctx, []Item{ExclusiveItem(name)}, opts...)
}

// TryLock takes a lock only if that is possible at once. If not, the error is a *NotAcquiredError, which
// names the holders. With WithWaitTimeout it is more patient, and the same as Lock with that option.
func (c *Client) TryLock(ctx context.Context, name string, opts ...Option) (*Lock, error) {
	return c.TryLockAll(ctx, []Item{ExclusiveItem(name)}, opts...)
}

// LockAll waits in line for several locks, which are granted together. While it waits, it blocks later requests for each
// of them.
func (c *Client) LockAll(ctx context.Context, items []Item, opts ...Option) (*Lock, error) {
	return c.acquire(ctx, newRequest(items, opts))
}

// TryLockAll takes several locks, if all are available at once.
func (c *Client) TryLockAll(ctx context.Context, items []Item, opts ...Option) (*Lock, error) {
	return c.LockAll(ctx, items, append([]Option{WithWaitTimeout(0)}, opts...)...)
}

// acquire requests a lock until there is a final answer. It repeats the request only when the previous one ended without
// a lock: the session ended, or the grant did before it could be handed over. The latter may happen each time, where the
// cluster is too far away for a maximum hold, so then there is a pause. The end of a limited wait is the cluster's word,
// for which it waits until RequestTimeout after the limit.
func (c *Client) acquire(ctx context.Context, r *request) (*Lock, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	if r.waitFor != unlimited {
		r.waitUntil = time.Now().Add(r.waitFor)
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, r.waitUntil.Add(c.cfg.RequestTimeout), errRequestTimeout)
		defer cancel()
	}
	var between pause
	for {
		if ctx.Err() != nil {
			return nil, &NotAcquiredError{Names: names(r.items), cause: contextEnd(ctx)}
		}
		s, err := c.living()
		if err != nil {
			return nil, err
		}
		lock, err := s.ask(r).wait(ctx, r)
		switch {
		case errors.Is(err, errTooLate):
			if between == (pause{}) {
				c.log.Warn("zamok: the maximum hold passed before the lock could be returned; acquiring again", "locks", names(r.items), "max hold", r.maxHold)
			}
			between.wait(ctx)
		case !errors.Is(err, errRetryInNewSession):
			return lock, err
		}
	}
}

// errRetryInNewSession and errTooLate: an acquisition ended without a lock; with the latter it was granted.
var (
	errRetryInNewSession = errors.New("ask again")
	errTooLate           = errors.New("ask again later")
)

// wait waits for the end of an acquisition. If its context ends first, it is cancelled: a wait while the session is
// attached ends at once; without a stream, for a try, or if the cluster did not end a limited wait in time, the outcome
// of what was sent is unknown.
func (t *ticket) wait(ctx context.Context, r *request) (lock *Lock, err error) {
	s := t.s
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		settled := t.await(ctx, func() bool {
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
		case !settled:
			t.giveUp(nil)
			switch {
			case s.link != nil && r.waitFor != 0 && context.Cause(ctx) != errRequestTimeout:
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

// await waits until the ticket is settled, or ctx ends first. Its caller has the mutex, which is free meanwhile.
func (t *ticket) await(ctx context.Context, settled func() bool) bool {
	for !settled() {
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

// Do runs f under a lock. The context of f ends when the lock is lost, with the loss as its cause. The error
// joins that of f and that of the release: ErrLost is in it if the lock was lost before f returned.
func (c *Client) Do(ctx context.Context, name string, f func(context.Context, *Lock) error, opts ...Option) (err error) {
	lock, err := c.Lock(ctx, name, opts...)
	if err != nil {
		return err
	}
	inside, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(lock.Context(), func() { cancel(lock.Err()) })
	defer func() { // also if f panics: the program may recover, and others wait
		stop()
		cancel(nil)
		err = errors.Join(err, lock.Unlock(ctx))
	}()
	return f(inside, lock)
}

// limited bounds a wait for the cluster by the request timeout, and works with a context that has ended: a release must
// not be prevented by the end of the work that it protected.
func (c *Client) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	timeout := c.cfg.RequestTimeout
	if ctx.Err() != nil {
		ctx, timeout = context.WithoutCancel(ctx), min(timeout, afterwards)
	}
	return context.WithTimeoutCause(ctx, timeout, errRequestTimeout)
}

// afterwards is how long Unlock waits for the cluster when its context has ended already.
const afterwards = time.Second

// Item is one lock of an acquisition, made by ExclusiveItem, SharedItem or PermitsItem.
type Item struct {
	name           string
	mode           zamokpb.Mode
	permits, limit uint32
}

// Name is the lock's name.
func (i Item) Name() string { return i.name }

// ExclusiveItem asks for a lock that fits beside nothing else.
func ExclusiveItem(name string) Item { return Item{name: name, mode: zamokpb.Mode_MODE_EXCLUSIVE} }

// SharedItem asks for a lock that fits beside other shared ones.
func SharedItem(name string) Item { return Item{name: name, mode: zamokpb.Mode_MODE_SHARED} }

// PermitsItem asks for n of the lock's permits, of which there are limit. All users of the lock must name the
// same number.
func PermitsItem(name string, n, limit uint32) Item {
	return Item{name: name, mode: zamokpb.Mode_MODE_PERMITS, permits: n, limit: limit}
}

type itemJSON struct {
	Name    string `json:"name"`
	Mode    string `json:"mode"`
	Permits uint32 `json:"permits,omitempty"`
	Limit   uint32 `json:"of,omitempty"`
}

// MarshalJSON is for what is stored with a Reservation.
func (i Item) MarshalJSON() ([]byte, error) {
	return json.Marshal(itemJSON{i.name, i.Mode().String(), i.permits, i.limit})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (i *Item) UnmarshalJSON(text []byte) error {
	var j itemJSON
	if err := json.Unmarshal(text, &j); err != nil {
		return err
	}
	for mode := ModeExclusive; mode <= ModePermits; mode++ {
		if mode.String() == j.Mode {
			*i = Item{j.Name, zamokpb.Mode(mode), j.Permits, j.Limit}
			return nil
		}
	}
	return invalid("mode", "%q is none", j.Mode)
}

// Option changes one acquisition.
type Option func(*request)

// request is what a caller wants: the same however often it is sent.
type request struct {
	items      []Item
	waitFor    time.Duration // in line; 0 = not at all
	waitUntil  time.Time     // where waitFor ends, counted from the call
	owner      string
	metadata   []byte
	maxHold    time.Duration
	onPosition func(Position)
}

// Shared makes a Lock of one name shared.
func Shared() Option { return func(r *request) { r.each(SharedItem) } }

// Permits makes a Lock of one name one of n permits.
func Permits(n, limit uint32) Option {
	return func(r *request) { r.each(func(name string) Item { return PermitsItem(name, n, limit) }) }
}

func (r *request) each(f func(string) Item) {
	for i := range r.items {
		r.items[i] = f(r.items[i].name)
	}
}

// WithOwner names a logical thread of this client, for the search for deadlocks: an acquisition that would
// wait, through others with owners, for something that its own owner holds is refused (ErrDeadlock). An
// owner waits for one thing at a time.
func WithOwner(name string) Option { return func(r *request) { r.owner = name } }

// WithMetadata is for people who ask who holds a lock: up to 4 KiB.
func WithMetadata(data []byte) Option { return func(r *request) { r.metadata = data } }

// WithMaxHold ends the grant d after the cluster made it, however alive the client is. 0 = never; otherwise d is at least
// MaxHoldMin.
//
// The client ends it earlier than the cluster, because their clocks may run at different rates: by a twentieth of d, at
// least 200 ms, and by what the confirmation that this is counted from took to the cluster. Of 250 ms less than 50
// are left, of 2 s less than 1.8 s, of a minute less than 57 s. If the session's last confirmation is so old that it
// would cost more than a tenth of that, Lock returns one round trip later, with a new one. If even that leaves
// nothing, the cluster is too far away for d: the grant is given back, which is logged, and Lock asks again, after pauses
// that grow to half a second, until its context ends.
func WithMaxHold(d time.Duration) Option { return func(r *request) { r.maxHold = d } }

const (
	unlimited      time.Duration = -1
	waitTimeoutMax               = 366 * 24 * time.Hour // what the cluster takes
)

// WithWaitTimeout limits the wait in line to d, counted from the call; 0 or less = do not wait, which is what TryLock
// does without it.
//
// The cluster keeps the limit, in its own time, which stands still while there is no leader. At its end it takes the
// request out of the queue, and the error is a *NotAcquiredError without a context's: nothing is left of the request.
// If the cluster's word has not come RequestTimeout after the limit, the call gives up: as with TryLock, the error is
// ErrUnavailable, an *UnconfirmedError if the request had been sent, and it is cancelled in the background until the
// cluster confirms. Until then the lock may still be granted, and returned. A context that ends before that ends the
// wait as it ends any Lock's.
func WithWaitTimeout(d time.Duration) Option {
	return func(r *request) { r.waitFor = min(max(d, 0), waitTimeoutMax) }
}

// OnPosition calls f with the place in the queue, when it is known and when it changed, at most once a second, and
// less often while many are ahead.
// It is called by the goroutine that waits, and holds up that one only.
func OnPosition(f func(Position)) Option { return func(r *request) { r.onPosition = f } }

// Position is a place in a queue.
type Position struct {
	Name     string // the lock spoken of: the first for which the acquisition waits
	Ahead    int    // waiters before this one: exact up to 100; more may count some that left the queue meanwhile
	Blockers []Blocker
}

func newRequest(items []Item, opts []Option) *request {
	r := &request{items: append([]Item(nil), items...), waitFor: unlimited}
	for _, o := range opts {
		o(r)
	}
	return r
}

// What the cluster takes. It says so itself, with every field; here is checked only what would break the
// frame in which it is sent, and with it what others want.
const (
	nameBytesMax     = 512
	ownerBytesMax    = 256
	metadataBytesMax = 4096
	itemsMax         = 64
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
		return invalid("max_hold", "%v is too short to be held, the shortest possible is %v", r.maxHold, MaxHoldMin)
	}
	if len(r.metadata) > metadataBytesMax {
		return invalid("metadata", "%d bytes, at most %d", len(r.metadata), metadataBytesMax)
	}
	return text("owner", r.owner, ownerBytesMax)
}

func names(items []Item) []string { return each(items, Item.Name) }

// wire is the request as it is sent under a number.
func (r *request) wire(number uint64) *zamokpb.Acquire {
	a := &zamokpb.Acquire{
		Ticket: number, WaitFor: int64(unlimited), MaxHold: int64(r.maxHold),
		Owner: r.owner, Metadata: r.metadata, ReportPosition: r.onPosition != nil,
		Items: each(r.items, func(i Item) *zamokpb.Item {
			return &zamokpb.Item{Name: i.name, Mode: i.mode, Permits: i.permits, Limit: i.limit}
		}),
	}
	if r.waitFor != unlimited { // what is left of it: it may be sent late, and again in another session
		a.WaitFor = int64(max(time.Until(r.waitUntil), 0))
	}
	return a
}
