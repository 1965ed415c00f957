package peer

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// ErrHeld is TryLock's answer when somebody else holds the lock.
var ErrHeld = errors.New("somebody else holds the lock")

// Unlock releases what one call of Lock or TryLock got.
type Unlock func(ctx context.Context) error

// Client is one session. Several goroutines may use it at the same time, up to Session.Width.
type Client interface {
	Lock(ctx context.Context, key string) (Unlock, error)
	TryLock(ctx context.Context, key string) (Unlock, error)
	Close() error
}

// Session is what a client is opened with.
type Session struct {
	Endpoints []string
	TTL       time.Duration
	Width     int           // goroutines that will use it at the same time
	Release   time.Duration // release on disconnect, after this grace; 0 = off
}

// System is one way to take locks.
type System struct {
	Name       string
	Title      string
	Server     string // which of server.Starters
	Open       func(ctx context.Context, s Session) (Client, error)
	Durability string // what survives which failure, for the report
	Client     string // which library
	Notes      string

	ExpiresHolders       bool // a dead holder's lock comes free after the lease
	ReleasesOnDisconnect bool // or as soon as its connection breaks, if asked
	QueuesWaiters        bool // a waiter is parked, not polling
	OwnClientsMax        int  // clients of their own that it can carry; 0 = as many as are asked for
	ContendedClientsMax  int  // clients on one key that can be measured in a few seconds; 0 = as many as are asked for
	SpeedOnly            bool // its speed is all that differs from the system before it
	TransportOnly        bool // no lock at all: what the transport alone costs

	WarmUp time.Duration // it runs so long before it is measured, if that is longer than is set: three JVMs begin slowly
}

// Systems is all of them, in the order of the report.
func Systems() []System {
	return []System{
		{Name: "zamok", Title: "zamok ×3", Server: "zamok", Open: openZamok, ExpiresHolders: true, ReleasesOnDisconnect: true, QueuesWaiters: true,
			Durability: "every grant on two disks of three", Client: "zamok/client"},
		{Name: "zamok-wal", Title: "zamok ×3, raft-wal", Server: "zamok-wal", Open: openZamok, ExpiresHolders: true, ReleasesOnDisconnect: true, QueuesWaiters: true,
			Durability: "every grant on two disks of three", Client: "zamok/client"},
		{Name: "etcd", Title: "etcd ×3", Server: "etcd", Open: openEtcd, ExpiresHolders: true, QueuesWaiters: true,
			Durability: "every grant on two disks of three", Client: "etcd/client/v3/concurrency"},
		{Name: "zookeeper", Title: "ZooKeeper ×3", Server: "zookeeper", Open: openZooKeeper, ExpiresHolders: true, QueuesWaiters: true, WarmUp: 20 * time.Second,
			Durability: "every grant on two disks of three", Client: "go-zookeeper/zk",
			Notes: "the client's Lock has no TryLock: an ephemeral node of the lock's name stands in, as in ZooKeeper's recipes"},
		{Name: "redis-aof", Title: "Redis, AOF always", Server: "redis-aof", Open: openRedsync, ExpiresHolders: true, ContendedClientsMax: 64,
			Durability: "every grant on one disk", Client: "redsync on go-redis",
			Notes: "redsync gives up after 32 tries; the harness then calls it again"},
		{Name: "redis-mem", Title: "Redis, no persistence", Server: "redis-mem", Open: openRedsync, ExpiresHolders: true, ContendedClientsMax: 64, SpeedOnly: true,
			Durability: "nothing: a restart frees every lock", Client: "redsync on go-redis"},
		{Name: "postgres", Title: "PostgreSQL advisory", Server: "postgres", Open: openPostgres, OwnClientsMax: 1024, QueuesWaiters: true,
			Durability: "nothing: a restart frees every lock; no lease: a lock lasts as long as its connection", Client: "pgx, pg_advisory_lock"},
		{Name: "retry", Title: "retry lock, on etcd", Server: "etcd", Open: openShadowRow, OwnClientsMax: 64, ContendedClientsMax: 16,
			Durability: "as etcd", Client: "etcd/client/v3",
			Notes: "a shadow row shows that nobody else tries; random sleeps up to 1000 ms after a holder was seen, up to 50 ms × attempt after a collision"},
		{Name: "queue", Title: "queue lock, on etcd", Server: "etcd", Open: openRowQueue, OwnClientsMax: 64, ContendedClientsMax: 64,
			Durability: "as etcd", Client: "etcd/client/v3",
			Notes: "a row ordered by time; whose place is first holds the lock; the others look every 50 ms"},
		{Name: "setnx", Title: "SETNX/GETSET, on Redis AOF", Server: "redis-aof", Open: openSetNX, OwnClientsMax: 64, ContendedClientsMax: 64,
			Durability: "every grant on one disk", Client: "go-redis",
			Notes: "looks every 100 ms; unlocking does not compare, as in the original"},
		{Name: "echo", Title: "gRPC echo", Server: "echo", Open: openEcho, TransportOnly: true,
			Durability: "nothing: it holds no lock", Client: "zamok's wire, answered with nothing behind it"},
	}
}

// sleepContext waits for d, or returns why ctx ended.
func sleepContext(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// randomUpTo is a random time from 0 up to d.
func randomUpTo(d time.Duration) time.Duration { return rand.N(d + 1) }
