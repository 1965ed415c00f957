package driver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"

	"github.com/go-zookeeper/zk"
)

func openZooKeeper(ctx context.Context, s Session) (Client, error) {
	conn, events, err := zk.Connect(s.Endpoints, s.TTL, zk.WithLogger(log.New(io.Discard, "", 0)),
		zk.WithLogInfo(false))
	if err != nil {
		return Client{}, err
	}
	for state := zk.StateUnknown; state != zk.StateHasSession; {
		select {
		case e := <-events:
			state = e.State
		case <-ctx.Done():
			conn.Close()
			return Client{}, fmt.Errorf("no session: %w", ctx.Err())
		}
	}
	return Client{
		// Lock can't be cancelled in this client: only Close ends a wait.
		Lock: func(_ context.Context, key string) (Unlock, error) {
			lock := zk.NewLock(conn, "/lock/"+key, zk.WorldACL(zk.PermAll))
			return func(context.Context) error { return lock.Unlock() }, lock.Lock()
		},
		TryLock: func(_ context.Context, key string) (Unlock, error) {
			path := "/try-" + key
			_, err := conn.Create(path, nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
			if errors.Is(err, zk.ErrNodeExists) {
				err = ErrHeld
			}
			return func(context.Context) error { return conn.Delete(path, -1) }, err
		},
		Close: func() error {
			conn.Close()
			return nil
		},
	}, nil
}
