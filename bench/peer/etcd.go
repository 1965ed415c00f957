package peer

import (
	"context"
	"errors"
	"time"

	etcd "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

type etcdClient struct {
	conn    *etcd.Client
	session *concurrency.Session
}

func dialEtcd(s Session) (*etcd.Client, error) {
	return etcd.New(etcd.Config{Endpoints: s.Endpoints, DialTimeout: 10 * time.Second, Logger: zap.NewNop()})
}

func openEtcd(ctx context.Context, s Session) (Client, error) {
	conn, err := dialEtcd(s)
	if err != nil {
		return nil, err
	}
	// The session's context is for its whole life, so ctx bounds only the opening.
	lease, err := conn.Grant(ctx, int64(s.TTL/time.Second))
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	session, err := concurrency.NewSession(conn, concurrency.WithTTL(int(s.TTL/time.Second)), concurrency.WithLease(lease.ID))
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &etcdClient{conn, session}, nil
}

func (c *etcdClient) Lock(ctx context.Context, key string) (Unlock, error) {
	m := concurrency.NewMutex(c.session, "/lock/"+key)
	return m.Unlock, m.Lock(ctx)
}

func (c *etcdClient) TryLock(ctx context.Context, key string) (Unlock, error) {
	m := concurrency.NewMutex(c.session, "/lock/"+key)
	err := m.TryLock(ctx)
	if errors.Is(err, concurrency.ErrLocked) {
		err = ErrHeld
	}
	return m.Unlock, err
}

func (c *etcdClient) Close() error { return errors.Join(c.session.Close(), c.conn.Close()) }
