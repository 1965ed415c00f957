package client_test

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/client"
	"zamok/client/admin"
)

func TestLockIsHeldUntilUnlocked(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3)
	a, b, ctx := c.client(nil), c.client(nil), soon(t)

	first, err := a.Lock(ctx, "x", client.WithMeta([]byte("me")))
	require.NoError(t, err)
	require.NoError(t, first.Err())
	require.Equal(t, "x", first.Name())
	require.Greater(t, time.Until(first.Deadline()), 5*time.Second)
	held, _, err := a.Check(ctx, first.Grant())
	require.NoError(t, err)
	require.True(t, held)

	var not *client.NotAcquiredError
	// if the answer is lost, what is found later names no holder
	for not == nil || len(not.Holders) == 0 {
		_, err = b.TryLock(ctx, "x")
		require.ErrorAs(t, err, &not)
		require.ErrorIs(t, err, client.ErrNotAcquired)
	}
	require.Equal(t, first.Session(), not.Holders[0].Session)
	require.Equal(t, first.Token(), not.Holders[0].Token)

	granted := make(chan *client.Lock)
	go func() {
		second, err := b.Lock(ctx, "x")
		if err != nil {
			t.Error(err)
		}
		granted <- second
	}()
	c.waiting(a, "x", 1)
	require.NoError(t, first.Unlock(ctx))
	require.ErrorIs(t, first.Unlock(ctx), client.ErrNotHeld)
	require.ErrorIs(t, first.Err(), client.ErrNotHeld)
	require.False(t, closed(first.Lost()), "to unlock is not to lose")
	second := until(t, granted, "the lock")
	require.Greater(t, second.Token(), first.Token())
	require.NoError(t, second.Unlock(ctx))
	c.free(a, "x")
}

func TestContextBoundsTheWaitOnly(t *testing.T) {
	c := startCluster(t, 1)
	a, b, ctx := c.client(nil), c.client(nil), soon(t)
	short, cancel := context.WithCancel(ctx)
	held, err := a.Lock(short, "x")
	require.NoError(t, err)

	waits := make(chan error)
	go func() {
		_, err := b.Lock(short, "x")
		waits <- err
	}()
	c.waiting(a, "x", 1)
	cancel()
	err = until(t, waits, "the end of a cancelled wait")
	require.ErrorIs(t, err, context.Canceled)
	// as it is while a stream that fell silent is opened anew
	if !errors.Is(err, client.ErrUnavailable) {
		require.ErrorIs(t, err, client.ErrNotAcquired)
	}
	c.waiting(a, "x", 0)

	require.NoError(t, held.Err(), "a lock outlives the context of its wait")
	if err := held.Unlock(short); err != nil { // it does not wait for long then
		mayHaveDone(t, err)
		require.NotErrorIs(t, err, context.Canceled)
	}
	c.free(a, "x") // it is unlocked all the same
}

func TestModes(t *testing.T) {
	c := startCluster(t, 1)
	a, ctx := c.client(nil), soon(t)

	r1, err := a.Lock(ctx, "rw", client.Shared())
	require.NoError(t, err)
	r2, err := a.TryLock(ctx, "rw", client.Shared())
	require.NoError(t, err)
	_, err = a.TryLock(ctx, "rw")
	require.ErrorIs(t, err, client.ErrNotAcquired)
	_, err = a.TryLock(ctx, "rw", client.Permits(1, 3))
	require.ErrorIs(t, err, client.ErrKindMismatch)
	require.NoError(t, r1.Unlock(ctx))
	require.NoError(t, r2.Unlock(ctx))

	p1, err := a.Lock(ctx, "p", client.Permits(2, 3))
	require.NoError(t, err)
	_, err = a.TryLock(ctx, "p", client.Permits(2, 3))
	require.ErrorIs(t, err, client.ErrNotAcquired)
	_, err = a.Lock(ctx, "p", client.Permits(4, 3))
	require.ErrorIs(t, err, client.ErrInvalid)

	all, err := a.LockAll(ctx,
		[]client.Item{client.ExclusiveItem("a"), client.SharedItem("b"),
			client.PermitsItem("p", 1, 3)})
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b", "p"}, all.Names())
	_, err = a.TryLockAll(ctx,
		[]client.Item{client.ExclusiveItem("b"), client.ExclusiveItem("free")})
	require.ErrorIs(t, err, client.ErrNotAcquired)
	require.NoError(t, p1.Unlock(ctx))

	w, err := a.Lock(ctx, "free")
	require.NoError(t, err)
	// it does not wait for long then, and continues
	if err := all.Downgrade(cancelled()); err != nil {
		mayHaveDone(t, err)
		require.NotErrorIs(t, err, context.Canceled)
		require.NoError(t, all.Downgrade(ctx))
	}
	_, err = a.TryLock(ctx, "a", client.Shared())
	require.NoError(t, err, "after a downgrade readers come in")
	require.NoError(t, w.Unlock(ctx))
	require.ErrorIs(t, w.Downgrade(ctx), client.ErrNotHeld)
	require.NoError(t, all.Unlock(ctx))
}

func cancelled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func TestDeadlockIsReportedWithItsCycle(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	a, ctx := c.client(nil), soon(t)
	_, err := a.Lock(ctx, "x", client.WithOwner("one"))
	require.NoError(t, err)
	var dead *client.DeadlockError
	// if the answer is lost, what is found later has no cycle
	for dead == nil || len(dead.Cycle) == 0 {
		_, err = a.Lock(ctx, "x", client.WithOwner("one"))
		require.ErrorAs(t, err, &dead)
		require.ErrorIs(t, err, client.ErrDeadlock)
	}
	require.Len(t, dead.Cycle, 2)
	require.Equal(t, "one", dead.Cycle[0].Owner)
}

func TestHoldersAndWaitersAreNotified(t *testing.T) {
	c := startCluster(t, 1)
	a, ctx := c.client(nil), soon(t)
	held, err := a.Lock(ctx, "x")
	require.NoError(t, err)
	contended := held.Contended()

	positions := make(chan client.Position, 10)
	waits := make(chan error, 1)
	bounded, cancel := context.WithCancel(ctx)
	go func() {
		_, err := a.Lock(bounded, "x",
			client.OnPosition(func(p client.Position) { positions <- p }))
		waits <- err
	}()
	require.Equal(t, 0, until(t, positions, "a place in the queue").Ahead)
	require.Equal(t, 1, until(t, contended, "how many wait"))
	cancel()
	require.ErrorIs(t, until(t, waits, "the wait's end"), context.Canceled)
}

func TestMaxHoldEndsAGrant(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	a, ctx := c.client(nil), soon(t)
	held, err := a.Lock(ctx, "x", client.WithMaxHold(time.Second))
	require.NoError(t, err)
	require.Less(t, time.Until(held.Deadline()), time.Second)
	next, err := a.Lock(ctx, "x")
	require.NoError(t, err)
	require.True(t, closed(held.Lost()), "the next holder came while this one believed")
	require.ErrorIs(t, held.Err(), client.ErrLost)
	require.ErrorIs(t, context.Cause(held.Context()), client.ErrLost)
	require.ErrorIs(t, held.Unlock(ctx), client.ErrLost)
	require.ErrorIs(t, held.Unlock(ctx), client.ErrNotHeld)
	require.NoError(t, next.Unlock(ctx))
}

// A maximum hold that the margin for clocks eats up is refused at once.
func TestAMaximumHoldThatCanNotBeHeldIsRefused(t *testing.T) {
	c := startCluster(t, 1)
	a, ctx := c.client(nil), soon(t)
	for _, d := range []time.Duration{time.Millisecond, 200 * time.Millisecond,
		client.MaxHoldMin - 1} {
		_, err := a.Lock(ctx, "x", client.WithMaxHold(d))
		require.ErrorIs(t, err, client.ErrInvalid)
		require.ErrorContains(t, err, client.MaxHoldMin.String())
		_, err = a.TryLock(ctx, "x", client.WithMaxHold(d))
		require.ErrorIs(t, err, client.ErrInvalid)
	}
}

func TestOperators(t *testing.T) {
	c := startCluster(t, 1)
	a, b, ctx := c.client(nil), c.client(nil), soon(t)
	var held *client.Lock
	var ended []admin.TicketRef
	for len(ended) == 0 { // a second call, after the first answer was lost, ends nothing
		var err error
		held, err = a.Lock(ctx, "x")
		require.NoError(t, err)
		ended, err = admin.New(b).ForceRelease(ctx, "x", held.Token(), "maintenance")
		require.NoError(t, err)
		until(t, held.Lost(), "the loss")
	}
	require.Equal(t, []admin.TicketRef{{Session: held.Session(), Ticket: held.Ticket()}}, ended)
	require.ErrorIs(t, held.Err(), client.ErrForceReleased)
	require.ErrorContains(t, held.Err(), "maintenance")

	again, err := a.Lock(ctx, "x")
	require.NoError(t, err)
	require.Equal(t, held.Session(), again.Session())
	waits := make(chan *client.Lock)
	go func() {
		l, err := a.Lock(ctx, "x")
		if err != nil {
			t.Error(err)
		}
		waits <- l
	}()
	c.waiting(b, "x", 1)
	// the first answer did not come
	if err := admin.New(b).ExpireSession(ctx, again.Session(), "gone mad"); err != nil {
		require.ErrorIs(t, err, client.ErrSessionExpired)
		mayHaveDone(t, err)
	}
	until(t, again.Lost(), "the loss")
	require.ErrorIs(t, again.Err(), client.ErrLost)
	next := until(t, waits, "a wait that goes on in a new session")
	require.NotEqual(t, again.Session(), next.Session())
	sessions, _, err := admin.New(b).Sessions(ctx, 0, 0)
	require.NoError(t, err)
	require.Len(t, sessions, 1)

	members, cluster, err := admin.New(b).Members(ctx)
	require.NoError(t, err)
	require.Len(t, members, 1)
	require.NotEmpty(t, cluster.ID)
	require.Zero(t, cluster.HoldOff)
}

func TestReadingAndWatching(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3)
	a, ctx := c.client(nil), soon(t)
	before, err := admin.New(a).Now(ctx)
	require.NoError(t, err)
	held, err := a.Lock(ctx, "dir/x")
	require.NoError(t, err)
	after, err := admin.New(a).Now(ctx)
	require.NoError(t, err)
	require.True(t, before.Before(after))
	locks, at, err := a.List(ctx, "dir/", "", 0)
	require.NoError(t, err)
	require.Len(t, locks, 1)
	require.Equal(t, 1, locks[0].Holders)

	bounded, cancel := context.WithCancel(ctx)
	defer cancel()
	var seen []client.Event
	for m, err := range a.Watch(bounded, "dir/", at.Index) {
		if err != nil {
			require.ErrorIs(t, err, context.Canceled)
			break
		}
		if len(m.Events) == 0 {
			go func() { _ = held.Unlock(ctx) }()
			continue
		}
		seen = append(seen, m.Events...)
		cancel()
	}
	require.Len(t, seen, 1)
	require.Equal(t, client.EventReleased, seen[0].Kind)
	require.Equal(t, held.Token(), seen[0].Token)
}

func TestCloseReleasesAtOnce(t *testing.T) {
	c := startCluster(t, 1)
	a, b, ctx := c.client(func(cfg *client.Config) { cfg.TTL = client.DefaultTTL }),
		c.client(nil), soon(t)
	held, err := a.Lock(ctx, "x")
	require.NoError(t, err)
	waits := make(chan error, 1)
	go func() {
		_, err := a.Lock(ctx, "x")
		waits <- err
	}()
	c.waiting(b, "x", 1)
	if err := a.Close(); err != nil {
		mayHaveDone(t, err)
		c.free(b, "x") // at the end of the ttl at the latest
	}
	require.True(t, closed(held.Lost()))
	require.ErrorIs(t, held.Err(), client.ErrClosed)
	require.ErrorIs(t, until(t, waits, "the wait's end"), client.ErrClosed)
	_, err = b.TryLock(ctx, "x")
	require.NoError(t, err, "what was held is free when Close returns")
	_, err = a.Lock(ctx, "x")
	require.ErrorIs(t, err, client.ErrClosed)
	_, err = admin.New(a).Now(ctx)
	require.ErrorIs(t, err, client.ErrClosed)
}

func TestMembersChange(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3)
	a, ctx := c.client(nil), soon(t)
	held, err := a.Lock(ctx, "x")
	require.NoError(t, err)
	old := c.leader()
	for try := 0; c.leader() == old; try++ { // on a busy machine it may get the epoch back
		require.Less(t, try, 10)
		if err := admin.New(a).Transfer(ctx, ""); err != nil {
			mayHaveDone(t, err)
		}
	}
	_, err = a.TryLock(ctx, "x")
	require.ErrorIs(t, err, client.ErrNotAcquired)
	require.NoError(t, held.Err())
	members, _, err := admin.New(a).Members(ctx)
	require.NoError(t, err)
	require.Len(t, members, 3)
	require.Error(t, admin.New(a).Remove(ctx, "nobody"))
	var whole countBytes
	n, err := admin.New(a).Backup(ctx, &whole)
	// it is not repeated, because a part may be written
	for errors.Is(err, client.ErrUnavailable) && ctx.Err() == nil {
		whole = 0
		n, err = admin.New(a).Backup(ctx, &whole)
	}
	require.NoError(t, err)
	require.Positive(t, n)
	require.EqualValues(t, n, whole)
}

// A backup whose writer fails ends its stream: a node streams two at most. The state is larger than
// what a node may send ahead on a stream that is not read.
func TestABackupWhoseWriterFailsEndsItsStream(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	a, ctx := c.client(nil), soon(t)
	locked := make(chan error, 300)
	for i := range cap(locked) {
		go func() {
			metadata := make([]byte, 4096)
			rand.Read(metadata)
			_, err := a.Lock(ctx, strconv.Itoa(i), client.WithMeta(metadata))
			locked <- err
		}()
	}
	for range cap(locked) {
		require.NoError(t, until(t, locked, "lock"))
	}
	full := errors.New("the disk is full")
	for range 3 {
		// the node learns a little later that a stream has ended
		require.Eventually(t, func() bool {
			_, err := admin.New(a).Backup(ctx, failing{full})
			return errors.Is(err, full)
		}, testTimeout, pollEvery)
	}
	require.Eventually(t, func() bool {
		n, err := admin.New(a).Backup(ctx, io.Discard)
		return err == nil && n > 1<<20
	}, testTimeout, pollEvery)
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

type countBytes int

func (c *countBytes) Write(p []byte) (int, error) {
	*c += countBytes(len(p))
	return len(p), nil
}

func TestElectionFollowsItsLock(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	a, b, ctx := c.client(nil), c.client(nil), soon(t)
	e := a.Election("epoch")
	_, ok, err := e.Leader(ctx)
	require.NoError(t, err)
	require.False(t, ok)
	first, err := e.Campaign(ctx, []byte("a"))
	require.NoError(t, err)
	elected := make(chan error, 1)
	var seen []string
	for l, err := range b.Election("epoch").Observe(ctx) {
		require.NoError(t, err)
		seen = append(seen, string(l.Value))
		switch len(seen) {
		case 1:
			go func() {
				_, err := b.Election("epoch").Campaign(ctx, []byte("b"))
				elected <- err
			}()
			c.waiting(a, "epoch", 1)
			require.NoError(t, first.Unlock(ctx))
		case 2:
			require.Equal(t, []string{"a", "b"}, seen)
			require.NoError(t, until(t, elected, "the end of the campaign"))
			return
		}
	}
}

func TestDoJoinsErrors(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	a, b, ctx := c.client(nil), c.client(nil), soon(t)
	boom := errors.New("boom")
	err := a.Do(ctx, "x", func(inside context.Context, l *client.Lock) error {
		_, err := admin.New(b).ForceRelease(ctx, "x", l.Token(), "")
		require.NoError(t, err)
		<-inside.Done()
		require.ErrorIs(t, context.Cause(inside), client.ErrLost)
		return boom
	})
	require.ErrorIs(t, err, boom)
	require.ErrorIs(t, err, client.ErrLost)
	require.NoError(t, a.Do(ctx, "x", func(context.Context, *client.Lock) error { return nil }))
	require.PanicsWithValue(t, "bad", func() {
		_ = a.Do(ctx, "x", func(context.Context, *client.Lock) error { panic("bad") })
	})
	c.free(b, "x")
}

// A long answer is cut at what one answer holds, with how much there is.
func TestALongAnswerArrives(t *testing.T) {
	const holders, listed = 300, 100
	c := startCluster(t, 1)
	a, ctx := c.client(nil), soon(t)
	name := strings.Repeat("n", 512)
	locked := make(chan error, holders)
	for range holders {
		go func() {
			_, err := a.Lock(ctx, name, client.Shared(), client.WithMeta(make([]byte, 4096)))
			locked <- err
		}()
	}
	for range holders {
		require.NoError(t, until(t, locked, "lock"))
	}
	detail, err := a.Get(ctx, name, listed)
	require.NoError(t, err)
	require.Len(t, detail.Held, listed)
	require.Equal(t, holders, detail.Holders)
}
