package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"zamok/api/zamokpb"
	"zamok/client"
	"zamok/client/admin"
)

func unsaved() error { return nil }

func reserve(t testing.TB, cl *client.Client, name string) *client.Reservation {
	t.Helper()
	r := client.NewReservation(time.Hour, client.ExclusiveItem(name))
	_, err := cl.Reserve(soon(t), r, unsaved)
	require.NoError(t, err)
	return r
}

// A reservation outlives the client that made it, and another one continues with anything that was
// saved.
func TestAReservationOutlivesItsClient(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	a, b := c.client(nil), c.client(nil)
	ctx := soon(t)
	r := client.NewReservation(30*time.Minute, client.ExclusiveItem("x"), client.SharedItem("y"),
		client.PermitsItem("p", 2, 3))
	r.Label, r.Meta = "anna", []byte("a load test")
	var saved []client.Reservation
	began := time.Now()
	until, err := a.Reserve(ctx, r, func() error {
		saved = append(saved, *r)
		sessions, _, err := admin.New(b).Sessions(ctx, 0, 0)
		require.NoError(t, err)
		held, err := b.Get(ctx, "x", 0)
		require.NoError(t, err)
		require.Len(t, sessions, min(len(saved)-1, 1), "what is not saved must not be sent")
		require.Equal(t, max(len(saved)-2, 0), held.Holders, "what is not saved must not be sent")
		return nil
	})
	require.NoError(t, err)
	require.WithinDuration(t, began.Add(r.TTL), until, time.Since(began))
	require.Len(t, saved, 3)
	require.NoError(t, a.Close())

	look := func() client.LockDetail {
		d, err := b.Get(ctx, "y", 0)
		require.NoError(t, err)
		require.Len(t, d.Held, 1)
		require.Equal(t, d.ReservedUntil, d.Held[0].LeaseUntil)
		return *d
	}
	first := look().Held[0]
	require.True(t, first.Reserved)
	require.Equal(t, admin.TicketRef{Session: r.Session, Ticket: r.Ticket},
		admin.TicketRef{Session: first.Session, Ticket: first.Ticket})
	require.Equal(t, r.Token, first.Token)
	require.Equal(t, "anna", first.Label)
	require.Equal(t, []byte("a load test"), first.Meta)
	for _, stored := range saved {
		text, err := json.Marshal(stored)
		require.NoError(t, err)
		var again client.Reservation
		require.NoError(t, json.Unmarshal(text, &again))
		_, err = b.Reserve(ctx, &again, unsaved)
		require.NoError(t, err)
		require.Equal(t, *r, again, "the same acquisition")
	}
	_, err = b.RenewReservation(ctx, r)
	require.NoError(t, err)
	require.Greater(t, look().ReservedUntil, first.LeaseUntil)
	held, err := b.TryLock(ctx, "z")
	require.NoError(t, err)
	require.NotNil(t, held)
	z, _, err := b.List(ctx, "z", "", 0)
	require.NoError(t, err)
	require.Zero(t, z[0].ReservedUntil, "a session with a stream reserves nothing")

	require.NoError(t, b.ReleaseReservation(ctx, r))
	c.free(b, "x")
	c.free(b, "y")
	sessions, _, err := admin.New(b).Sessions(ctx, 0, 0)
	require.NoError(t, err)
	require.Len(t, sessions, 1, "its session is closed, and the client's own lives")
	require.ErrorIs(t, b.ReleaseReservation(ctx, r), client.ErrLost)
	require.NoError(t, b.ReleaseReservation(ctx,
		client.NewReservation(time.Hour, client.ExclusiveItem("x"))), "nothing is held")
}

// A release whose answer did not come was still this one's, rather than somebody else's: repeated,
// it is confirmed.
func TestARepeatedReleaseIsNoLoss(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	cl := c.client(nil)
	r := reserve(t, cl, "x")
	conn, err := grpc.NewClient(c.nodes[0].Client(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	drop := &zamokpb.DropRequest{Session: r.Session, Secret: r.Secret, Ticket: r.Ticket}
	_, err = zamokpb.NewZamokClient(conn).Drop(soon(t), drop)
	require.NoError(t, err)
	require.NoError(t, cl.ReleaseReservation(soon(t), r))
	sessions, _, err := admin.New(cl).Sessions(soon(t), 0, 0)
	require.NoError(t, err)
	require.Empty(t, sessions)
}

// Whatever ended a reservation, no call takes it for held, and none takes the lock anew for it. One
// of which no grant was known continues.
func TestALostReservationIsReported(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	cl := c.client(nil)
	for name, end := range map[string]func(t *testing.T, r *client.Reservation){
		"released by force": func(t *testing.T, r *client.Reservation) {
			_, err := admin.New(cl).ForceRelease(soon(t), r.Items[0].Name(), r.Token, "a test")
			require.NoError(t, err)
		},
		"session ended": func(t *testing.T, r *client.Reservation) {
			require.NoError(t, admin.New(cl).ExpireSession(soon(t), r.Session, "a test"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := soon(t)
			r := reserve(t, cl, name)
			end(t, r)
			_, err := cl.RenewReservation(ctx, r)
			require.ErrorIs(t, err, client.ErrLost)
			_, err = cl.Reserve(ctx, r, unsaved)
			require.ErrorIs(t, err, client.ErrLost)
			c.free(cl, name)

			unknown := *r
			unknown.Token = 0
			_, err = cl.Reserve(ctx, &unknown, unsaved)
			require.NoError(t, err)
			require.Greater(t, unknown.Token, r.Token)
			_, err = cl.RenewReservation(ctx, r)
			require.ErrorIs(t, err, client.ErrLost, "another grant is not this one")
			require.NoError(t, cl.ReleaseReservation(ctx, &unknown))
			require.ErrorIs(t, cl.ReleaseReservation(ctx, r), client.ErrLost)

			r = reserve(t, cl, name)
			end(t, r)
			require.ErrorIs(t, cl.ReleaseReservation(ctx, r), client.ErrLost)
			c.free(cl, name)
		})
	}
	_, err := cl.RenewReservation(soon(t),
		client.NewReservation(time.Hour, client.ExclusiveItem("x")))
	require.ErrorIs(t, err, client.ErrInvalid)
}

// A reservation that was refused or given up holds nothing, and its session is over.
func TestAReservationGivenUpHoldsNothing(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	cl := c.client(nil)
	held, err := cl.Lock(soon(t), "held")
	require.NoError(t, err)
	over := errors.New("the caller gave up")
	full := errors.New("the disk is full")
	for name, test := range map[string]struct {
		item client.Item
		wait bool // for a context that ends
		save int  // the call of save that fails
		want error
	}{
		"tried":    {item: client.ExclusiveItem("held"), want: client.ErrNotAcquired},
		"given up": {item: client.ExclusiveItem("held"), wait: true, want: over},
		"another kind": {item: client.PermitsItem("held", 1, 2),
			want: client.ErrKindMismatch},
		"invalid":              {item: client.ExclusiveItem("a\nb"), want: client.ErrInvalid},
		"not saved":            {item: client.ExclusiveItem("free"), save: 1, want: full},
		"not saved once open":  {item: client.ExclusiveItem("free"), save: 2, want: full},
		"not saved once given": {item: client.ExclusiveItem("given"), save: 3, want: full},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(soon(t))
			r := client.NewReservation(time.Hour, test.item)
			saves := 0
			save := func() error {
				if saves++; saves == test.save {
					return full
				}
				return nil
			}
			call := cl.TryReserve
			if test.wait {
				call = cl.Reserve
				go func() {
					c.waiting(cl, "held", 1)
					cancel(over)
				}()
			}
			_, err := call(ctx, r, save)
			cancel(nil)
			require.ErrorIs(t, err, test.want)
			if refused := (*client.NotAcquiredError)(nil); name == "tried" &&
				errors.As(err, &refused) {
				require.Equal(t, held.Session(), refused.Holders[0].Session)
			}
			if test.save == 3 {
				require.NotZero(t, r.Token,
					"it is held, and what was saved before is enough to release it")
				require.NoError(t, cl.ReleaseReservation(soon(t), r))
			} else {
				require.Zero(t, r.Session)
			}
			sessions, _, err := admin.New(cl).Sessions(soon(t), 0, 0)
			require.NoError(t, err)
			require.Len(t, sessions, 1, "the client's own")
			require.NoError(t, held.Err())
		})
	}
}

// What a reservation has opened is over: its secret opens nothing more, and Reserve draws another
// one, and saves it first.
func TestAReservationGivenUpBeginsAnew(t *testing.T) {
	t.Parallel()
	cl := startCluster(t, 1).client(nil)
	holder := reserve(t, cl, "x")
	r := client.NewReservation(time.Hour, client.ExclusiveItem("x"))
	old := *r // as it was saved before anything was sent
	for range 2 {
		_, err := cl.TryReserve(soon(t), r, unsaved)
		require.ErrorIs(t, err, client.ErrNotAcquired)
		require.Zero(t, r.Session)
		require.NotEqual(t, old.Secret, r.Secret)
	}
	require.NoError(t, cl.ReleaseReservation(soon(t), holder))
	var saved []client.Reservation
	_, err := cl.TryReserve(soon(t), &old, func() error {
		saved = append(saved, old)
		return nil
	})
	require.NoError(t, err)
	require.Len(t, saved, 4)
	require.Equal(t, saved[1].Secret, saved[2].Secret)
	require.NotEqual(t, saved[0].Secret, saved[1].Secret)
	require.Zero(t, saved[1].Session)
	require.NoError(t, cl.ReleaseReservation(soon(t), &old))
}

// A wait that is longer than the ttl, and than the leadership, ends with the lock.
func TestAReservationIsWaitedForThroughALeaderChange(t *testing.T) {
	takesTime(t)
	t.Parallel()
	c := startCluster(t, 3)
	cl := c.client(nil)
	held, err := cl.Lock(soon(t), "x")
	require.NoError(t, err)
	const ttl = 4 * steady
	r := client.NewReservation(ttl, client.ExclusiveItem("x"))
	done := make(chan error, 1)
	began := time.Now()
	ctx := soon(t)
	go func() {
		_, err := cl.Reserve(ctx, r, unsaved)
		done <- err
	}()
	c.waiting(cl, "x", 1)
	require.NoError(t, c.leader().Kill())
	require.Eventually(t, func() bool { return time.Since(began) > ttl+ttl/2 }, testTimeout,
		pollEvery)
	c.waiting(cl, "x", 1)
	require.NoError(t, held.Unlock(soon(t)))
	require.NoError(t, until(t, done, "the reservation"))
	require.NoError(t, cl.ReleaseReservation(soon(t), r))
}

// A wait that continues a try of another process, which was refused, waits.
func TestAWaitAfterATryWaits(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	cl := c.client(nil)
	held, err := cl.Lock(soon(t), "x")
	require.NoError(t, err)
	conn, err := grpc.NewClient(c.nodes[0].Client(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	raw := zamokpb.NewZamokClient(conn)
	r := client.NewReservation(time.Hour, client.ExclusiveItem("x"))
	opened, err := raw.OpenSession(soon(t),
		&zamokpb.OpenSessionRequest{Secret: r.Secret,
			Settings: &zamokpb.SessionSettings{Ttl: int64(r.TTL)}})
	require.NoError(t, err)
	r.Session, r.Ticket = opened.Session, 1
	_, err = raw.Acquire(soon(t),
		&zamokpb.AcquireRequest{Session: r.Session, Secret: r.Secret, Acquire: &zamokpb.Acquire{
			Ticket: r.Ticket,
			Items:  []*zamokpb.Item{{Name: "x", Mode: zamokpb.Mode_MODE_EXCLUSIVE}}}})
	require.Error(t, err, "it is not free")
	done := make(chan error, 1)
	go func() {
		_, err := cl.Reserve(soon(t), r, unsaved)
		done <- err
	}()
	c.waiting(cl, "x", 1)
	require.NoError(t, held.Unlock(soon(t)))
	require.NoError(t, until(t, done, "the reservation"))
	require.EqualValues(t, 2, r.Ticket)
}

// A try that continues a wait of another process does not wait either.
func TestATryOfAWaitingReservationEnds(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	cl := c.client(nil)
	_, err := cl.Lock(soon(t), "x")
	require.NoError(t, err)
	r := client.NewReservation(time.Hour, client.ExclusiveItem("x"))
	saved := make(chan client.Reservation, 9)
	ctx, cancel := context.WithCancel(soon(t))
	done := make(chan error, 1)
	go func() {
		_, err := cl.Reserve(ctx, r, func() error { saved <- *r; return nil })
		done <- err
	}()
	until(t, saved, "what is saved first")
	again := until(t, saved, "the session")
	c.waiting(cl, "x", 1)
	brief := c.client(func(cfg *client.Config) { cfg.RequestTimeout = time.Second })
	_, err = brief.TryReserve(soon(t), &again, unsaved)
	require.ErrorIs(t, err, client.ErrNotAcquired)
	cancel()
	require.ErrorIs(t, until(t, done, "the end of the wait"), context.Canceled)
	c.waiting(cl, "x", 0)
}

// A reservation of one cluster is nothing to a client of another.
func TestAReservationBelongsToItsCluster(t *testing.T) {
	t.Parallel()
	twoClusters(t, func(t *testing.T, a, b *cluster, idA, idB string) {
		r := reserve(t, a.client(nil), "x")
		require.Equal(t, idA, r.Cluster)
		fresh, used := b.client(nil), b.client(nil)
		_, err := admin.New(used).Now(soon(t))
		require.NoError(t, err)
		for name, cl := range map[string]*client.Client{"fresh": fresh, "used": used} {
			_, renewing := cl.RenewReservation(soon(t), r)
			_, reserving := cl.Reserve(soon(t), r, unsaved)
			for _, err := range []error{renewing, reserving, cl.ReleaseReservation(soon(t), r)} {
				require.ErrorIs(t, err, client.ErrWrongCluster, name)
				require.ErrorContains(t, err, idA)
				require.ErrorContains(t, err, idB)
			}
		}
		b.unused()
		_, err = a.client(nil).RenewReservation(soon(t), r)
		require.NoError(t, err)
	})
}

// A reservation whose secret is over draws another one. If the client is closed then, it says so.
func TestReserveEndsWithItsClient(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	cl, ctx := c.client(nil), soon(t)
	r := client.NewReservation(time.Hour, client.ExclusiveItem("closed"))
	begun := *r
	_, err := cl.Reserve(ctx, r, unsaved)
	require.NoError(t, err)
	require.NoError(t, cl.ReleaseReservation(ctx, r))
	begun.Secret = r.Secret
	saves := 0
	_, err = cl.Reserve(ctx, &begun, func() error {
		if saves++; saves == 2 { // with another secret
			require.NoError(t, cl.Close())
		}
		return nil
	})
	require.ErrorIs(t, err, client.ErrClosed)
	require.Equal(t, 2, saves)
}
