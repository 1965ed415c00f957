package driver

import (
	"context"
	"errors"
	"time"

	etcd "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

// etcdSession is a connection with a lease, which is kept alive.
func etcdSession(ctx context.Context, s Session) (*concurrency.Session, error) {
	conn, err := etcd.New(etcd.Config{Endpoints: s.Endpoints, DialTimeout: 10 * time.Second,
		Logger: zap.NewNop()})
	if err != nil {
		return nil, err
	}
	// The session's context is for its whole life, so ctx bounds only the opening.
	lease, err := conn.Grant(ctx, int64(s.TTL/time.Second))
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	session, err := concurrency.NewSession(conn, concurrency.WithTTL(int(s.TTL/time.Second)),
		concurrency.WithLease(lease.ID))
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return session, nil
}

func closeEtcd(s *concurrency.Session) error { return errors.Join(s.Close(), s.Client().Close()) }

func openEtcd(ctx context.Context, s Session) (Client, error) {
	session, err := etcdSession(ctx, s)
	if err != nil {
		return Client{}, err
	}
	return Client{
		Lock: func(ctx context.Context, key string) (Unlock, error) {
			m := concurrency.NewMutex(session, "/lock/"+key)
			return m.Unlock, m.Lock(ctx)
		},
		TryLock: func(ctx context.Context, key string) (Unlock, error) {
			m := concurrency.NewMutex(session, "/lock/"+key)
			err := m.TryLock(ctx)
			if errors.Is(err, concurrency.ErrLocked) {
				err = ErrHeld
			}
			return m.Unlock, err
		},
		Close: func() error { return closeEtcd(session) },
	}, nil
}
