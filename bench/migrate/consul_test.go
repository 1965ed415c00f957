package migrate

import (
	"context"
	"net/http"
	"testing"
	"time"

	consul "github.com/hashicorp/consul/api"
	"github.com/stretchr/testify/require"

	"zamok/bench/server"
	"zamok/client"
	"zamok/client/admin"
)

func dialConsul(t *testing.T, address string, transport *http.Transport) *consul.Client {
	t.Helper()
	t.Cleanup(transport.CloseIdleConnections)
	c, err := consul.NewClient(
		&consul.Config{Address: address, HttpClient: &http.Client{Transport: transport}})
	require.NoError(t, err)
	ready(t, func(context.Context) error { // a session can be made once there is a leader
		id, _, err := c.Session().Create(&consul.SessionEntry{TTL: "10s"}, nil)
		if err == nil {
			_, err = c.Session().Destroy(id, nil)
		}
		return err
	})
	return c
}

// consulLocked is a program of Consul.
func consulLocked(c *consul.Client) program {
	return func(ctx context.Context, name string, work work) error {
		lock, err := c.LockOpts(&consul.LockOptions{Key: name, SessionTTL: "10s",
			LockDelay: time.Second})
		if err != nil {
			return err
		}
		lost, err := lock.Lock(ctx.Done())
		if err != nil {
			return err
		}
		if lost == nil {
			return ctx.Err()
		}
		defer lock.Unlock()
		held, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() { // ends with the lock
			<-lost
			cancel()
		}()
		pair, _, err := c.KV().Get(name, nil)
		if err != nil {
			return err
		}
		return work(held, int64(pair.LockIndex))
	}
}

func TestConsul(t *testing.T) {
	path := installed(t, "consul",
		"see https://developer.hashicorp.com/consul/install; Debian 12 has no package")
	t.Parallel()
	address, zamok := start(t, "consul", 1, server.Programs{Consul: path}).Endpoints[0],
		startZamok(t, 1)
	c, z := dialConsul(t, address, &http.Transport{}), dialZamok(t, zamok, client.Config{})

	testMove(t, consulLocked(c), zamokLocked(z), true)

	t.Run("cut off", func(t *testing.T) {
		t.Parallel()
		line := new(cable)
		holder := dialConsul(t, address, &http.Transport{DialContext: line.dial})
		require.False(t, testCut(t, line, consulLocked(holder), consulLocked(c)),
			"the holder waits for an answer")
	})

	t.Run("a destroyed session ends the work", func(t *testing.T) {
		held := within(t, eventTimeout, begin(t, consulLocked(c), "destroyed"), "the work")
		pair, _, err := c.KV().Get("destroyed", nil)
		require.NoError(t, err)
		_, err = c.Session().Destroy(pair.Session, nil)
		require.NoError(t, err)
		within(t, eventTimeout, held.lost, "the loss")
	})

	t.Run("two locks of one session are one", func(t *testing.T) { // of zamok: TestZamok
		session, _, err := c.Session().Create(&consul.SessionEntry{TTL: "10s"}, nil)
		require.NoError(t, err)
		var locks [2]*consul.Lock
		for i := range locks {
			locks[i], err = c.LockOpts(&consul.LockOptions{Key: "one", Session: session})
			require.NoError(t, err)
			_, err = locks[i].Lock(nil)
			require.NoError(t, err, "at once")
		}
		_, err = locks[0].Lock(nil)
		require.ErrorIs(t, err, consul.ErrLockHeld, "the same object")
		require.NoError(t, locks[0].Unlock())
		pair, _, err := c.KV().Get("one", nil)
		require.NoError(t, err)
		require.Empty(t, pair.Session, "the second one thinks that it holds it")
		_, err = c.Session().Destroy(session, nil)
		require.NoError(t, err)
	})

	t.Run("the number begins again after Destroy", func(t *testing.T) {
		for range 2 {
			lock, err := c.LockKey("number")
			require.NoError(t, err)
			_, err = lock.Lock(nil)
			require.NoError(t, err)
			pair, _, err := c.KV().Get("number", nil)
			require.NoError(t, err)
			require.EqualValues(t, 1, pair.LockIndex)
			require.NoError(t, lock.Unlock())
			require.NoError(t, lock.Destroy())
		}
	})

	t.Run("lock delay", func(t *testing.T) {
		const delay = time.Second
		acquire := func(entry consul.SessionEntry) (session string, won bool) {
			session, _, err := c.Session().Create(&entry, nil)
			require.NoError(t, err)
			won, _, err = c.KV().Acquire(&consul.KVPair{Key: "delay", Session: session}, nil)
			require.NoError(t, err)
			return session, won
		}
		// without LockDelay it is 15 s
		session, won := acquire(consul.SessionEntry{TTL: "10s", LockDelay: delay})
		require.True(t, won)
		_, err := c.Session().Destroy(session, nil)
		require.NoError(t, err)
		_, won = acquire(consul.SessionEntry{TTL: "10s"})
		require.False(t, won, "it is free, and closed")

		lock, err := dialZamok(t, zamok, client.Config{LockDelay: delay}).Lock(t.Context(), "delay")
		require.NoError(t, err)
		require.NoError(t, admin.New(z).ExpireSession(t.Context(), lock.Session(), "test"))
		_, err = z.TryLock(t.Context(), "delay")
		require.ErrorIs(t, err, client.ErrNotAcquired)
		_, err = z.Lock(t.Context(), "delay")
		require.NoError(t, err)
	})

	t.Run("commands", func(t *testing.T) {
		installed(t, "curl", "apt install curl")
		members, _, err := admin.New(z).Members(t.Context())
		require.NoError(t, err)
		runCommands(t, "from-consul.md", zamok, "CONSUL_HTTP_ADDR=http://"+address,
			"ZAMOK_HTTP=http://"+members[0].HTTP)
	})
}
