package redsync

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	real "github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/client"
	"zamok/client/admin"
)

// mutex is what a program may have made of redsync's Mutex. It names all methods of it.
type mutex interface {
	Name() string
	Value() string
	Until() time.Time
	TryLock() error
	TryLockContext(context.Context) error
	Lock() error
	LockContext(context.Context) error
	Unlock() (bool, error)
	UnlockContext(context.Context) (bool, error)
	Extend() (bool, error)
	ExtendContext(context.Context) (bool, error)
	Valid() (bool, error)
	ValidContext(context.Context) (bool, error)
}

var (
	_ mutex = (*real.Mutex)(nil)
	_ mutex = (*Mutex)(nil)
)

// system is what mutexes are made of, and what their errors are.
type system struct {
	mutex                  func(name string, tries int) mutex
	lose                   func(name string) // ends the lock that is held
	failed, expired, taken func(error) bool
}

func is(kind error) func(error) bool { return func(err error) bool { return errors.Is(err, kind) } }
func as[E error](err error) bool     { return errors.As(err, new(E)) }

func redisSystem(t *testing.T) system {
	server := miniredis.RunT(t)
	connection := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { assert.NoError(t, connection.Close()) })
	rs := real.New(goredis.NewPool(connection))
	return system{
		mutex: func(name string, tries int) mutex {
			return rs.NewMutex(name, real.WithTries(tries),
				real.WithRetryDelay(50*time.Millisecond), real.WithTimeoutFactor(0.5))
		},
		lose:   func(string) { server.FastForward(time.Minute) },
		failed: is(real.ErrFailed), expired: is(real.ErrLockAlreadyExpired),
		taken: as[*real.ErrTaken],
	}
}

func zamokSystem(t *testing.T) system {
	nodes := startNodes(t)
	c, operator := dial(t, nodes, client.Config{TTL: time.Minute}), dial(t, nodes, client.Config{})
	rs := New(c)
	return system{
		mutex: func(name string, tries int) mutex {
			return rs.NewMutex(name, WithTries(tries), WithRetryDelay(50*time.Millisecond))
		},
		lose: func(name string) {
			info, err := operator.Get(t.Context(), name, 1)
			require.NoError(t, err)
			_, err = admin.New(operator).ForceRelease(t.Context(), name, info.Held[0].Token,
				"a test")
			require.NoError(t, err)
		},
		failed: is(ErrFailed), expired: is(ErrLockAlreadyExpired), taken: as[*ErrTaken],
	}
}

// What a program sees is the same with both, step by step.
func TestAsRedsync(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) system{"redsync": redisSystem,
		"zamok": zamokSystem} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			no := func(kind func(error) bool, text string) func(ok bool, err error) {
				return func(ok bool, err error) {
					t.Helper()
					require.False(t, ok, text)
					require.True(t, kind(err), "%s: %v", text, err)
				}
			}
			yes := func(ok bool, err error) {
				t.Helper()
				require.NoError(t, err)
				require.True(t, ok)
			}
			a, b, c := s.mutex("x", 2), s.mutex("x", 2), s.mutex("x", 1)
			require.Equal(t, "x", a.Name())
			require.Empty(t, a.Value())
			require.Zero(t, a.Until())
			no(s.expired, "unlock of what was never locked")(a.Unlock())
			no(s.taken, "extend of what was never locked")(a.Extend())
			no(s.taken, "it was never locked")(a.Valid())

			require.NoError(t, a.Lock())
			require.NotEmpty(t, a.Value())
			require.Greater(t, time.Until(a.Until()), time.Second)
			yes(a.Valid())
			yes(a.Extend())
			require.Greater(t, time.Until(a.Until()), time.Second)
			require.True(t, s.taken(b.TryLock()))
			require.True(t, s.taken(b.Lock()), "after two tries")
			require.True(t, s.taken(c.Lock()), "after one")
			require.True(t, s.taken(a.Lock()), "it is not reentrant")
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			err := s.mutex("x", 1<<30).LockContext(ctx)
			require.True(t, s.failed(err), "%v", err)

			yes(a.Unlock())
			no(s.expired, "unlocked")(a.Unlock())
			no(s.taken, "unlocked")(a.Extend())
			require.NoError(t, c.Lock())
			require.NotEqual(t, a.Value(), c.Value())
			ok, _ := a.Unlock()
			require.False(t, ok, "it is held by another")
			yes(c.Valid())

			s.lose("x")
			no(s.taken, "lost")(c.Extend())
			no(s.taken, "lost")(c.Valid())
			no(s.expired, "lost")(c.Unlock())
			require.NoError(t, b.TryLock())
			yes(b.Unlock())
		})
	}
}

// Ours say more: a loss ends a context, and errors are the client's, too.
func TestErrorsAreTheClientsToo(t *testing.T) {
	t.Parallel()
	s := zamokSystem(t)
	a := s.mutex("x", 1).(*Mutex)
	require.Nil(t, a.Handle())
	require.NoError(t, a.Lock())
	var not *client.NotAcquiredError
	require.ErrorAs(t, s.mutex("x", 1).Lock(), &not)
	require.Equal(t, a.Handle().Token(), not.Holders[0].Token)

	s.lose("x")
	select {
	case <-a.Handle().Lost():
	case <-time.After(testTimeout):
		require.FailNow(t, "the loss is not reported")
	}
	until := a.Until()
	require.False(t, time.Now().Before(until))
	_, err := a.Extend()
	require.ErrorIs(t, err, ErrExtendFailed)
	require.ErrorIs(t, err, client.ErrLost)
	_, err = a.Unlock()
	require.ErrorIs(t, err, client.ErrLost)

	limited := New(a.c).NewMutex("y", WithOptions(client.WithMaxHold(time.Second)))
	require.NoError(t, limited.Lock())
	require.Less(t, time.Until(limited.Until()), time.Second, "it expires as with redsync")
}

func TestPatience(t *testing.T) {
	for _, c := range []struct {
		options []Option
		want    time.Duration
	}{
		{nil, 4650 * time.Millisecond},
		{[]Option{WithTries(1)}, 0},
		{[]Option{WithTries(3), WithRetryDelay(time.Second)}, 2 * time.Second},
		{[]Option{WithTries(1 << 62)}, time.Duration(1) << 62},
		{[]Option{WithRetryDelay(0)}, 0},
	} {
		require.Equal(t, c.want, New(nil).NewMutex("x", c.options...).waitLimit())
	}
}

// Twenty goroutines of three programs add to a number that only the lock protects, while the leader
// is killed.
func TestExclusion(t *testing.T) {
	t.Parallel()
	const goroutines, turns = 20, 20
	nodes := startNodes(t)
	var programs []*Redsync
	for range 3 {
		programs = append(programs, New(dial(t, nodes, client.Config{TTL: time.Minute})))
	}
	var inside atomic.Int32
	var number int
	var last client.Token
	half := make(chan struct{})
	var all sync.WaitGroup
	for i := range goroutines {
		m := programs[i%len(programs)].NewMutex("number", WithTries(1<<30))
		all.Go(func() {
			for range turns {
				if !assert.NoError(t, m.Lock()) {
					return
				}
				assert.EqualValues(t, 1, inside.Add(1))
				number++
				assert.Greater(t, m.Handle().Token(), last)
				last = m.Handle().Token()
				if number == goroutines*turns/2 {
					close(half)
				}
				inside.Add(-1)
				if _, err := m.Unlock(); err != nil { // a release continues when its answer is late
					assert.ErrorIs(t, err, client.ErrUnavailable)
				}
			}
		})
	}
	<-half
	killLeader(t, nodes)
	all.Wait()
	require.Equal(t, goroutines*turns, number)
}
