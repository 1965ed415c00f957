package peer

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"
)

type zookeeperClient struct{ conn *zk.Conn }

type discardLogger struct{}

func (discardLogger) Printf(string, ...any) {}

func openZooKeeper(ctx context.Context, s Session) (Client, error) {
	conn, events, err := zk.Connect(s.Endpoints, s.TTL, zk.WithLogger(discardLogger{}), zk.WithLogInfo(false))
	if err != nil {
		return nil, err
	}
	for {
		select {
		case e := <-events:
			if e.State == zk.StateHasSession {
				return &zookeeperClient{conn}, nil
			}
		case <-ctx.Done():
			conn.Close()
			return nil, fmt.Errorf("no session: %w", ctx.Err())
		}
	}
}

// Lock can't be cancelled in this client: only Close ends a wait.
func (c *zookeeperClient) Lock(_ context.Context, key string) (Unlock, error) {
	lock := zk.NewLock(c.conn, "/lock/"+key, zk.WorldACL(zk.PermAll))
	return func(context.Context) error { return lock.Unlock() }, lock.Lock()
}

func (c *zookeeperClient) TryLock(_ context.Context, key string) (Unlock, error) {
	path := "/try-" + key
	_, err := c.conn.Create(path, nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
	if errors.Is(err, zk.ErrNodeExists) {
		err = ErrHeld
	}
	return func(context.Context) error { return c.conn.Delete(path, -1) }, err
}

func (c *zookeeperClient) Close() error {
	c.conn.Close()
	return nil
}
