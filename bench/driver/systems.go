package driver

import (
	"context"
	"errors"
	"time"

	"zamok/bench/report"
	"zamok/cmd/zamok/loadgen"
)

// ErrHeld is TryLock's error if another client holds the lock.
var ErrHeld = errors.New("another client holds the lock")

// Unlock releases the lock that one call of Lock or TryLock acquired.
type Unlock func(ctx context.Context) error

// Client is one session. Several goroutines may use it at the same time, up to Session.Width.
type Client struct {
	Lock, TryLock func(ctx context.Context, key string) (Unlock, error)
	Close         func() error
}

// Session is the settings of a client.
type Session struct {
	Endpoints []string
	TTL       time.Duration
	Width     int           // goroutines that will use it at the same time
	Release   time.Duration // release on disconnect, after this time; 0 = off
}

// System is one way to take locks.
type System struct {
	report.System
	Server string // which kind server.Start starts
	Nodes  int    // 0 = as many as is usual
	Open   func(ctx context.Context, s Session) (Client, error)

	ExpiresHolders       bool // the lock of a dead holder is free after the lease
	ReleasesOnDisconnect bool // or as soon as its connection breaks, with Session.Release
	QueuesWaiters        bool // waiters do not poll
	OwnClientsMax        int  // the most clients with own keys; 0 = any number
	// the most clients on one key that can be measured in a few seconds; 0 = any number
	ContendedClientsMax int
	SpeedOnly           bool // it differs only in speed from the system before it
	Once                bool // only in the first round: no aim is set against it
	TransportOnly       bool // without a lock: the cost of the transport

	WarmUp time.Duration // the least warm-up: three JVMs begin slowly
}

// Systems are all systems, in the order of the report, and then those with five nodes.
func Systems() []System {
	all := []System{
		{System: report.System{Name: "zamok", Title: "zamok ×3", Client: "zamok/client",
			Durability: "every grant on two disks of three"},
			Server: "zamok", Open: openZamok, ExpiresHolders: true, ReleasesOnDisconnect: true,
			QueuesWaiters: true},
		{System: report.System{Name: "zamok-http", Title: "zamok ×3, HTTP",
			Client:     "net/http: one call, a session of its own",
			Durability: "every grant on two disks of three",
			Notes:      "each client calls one node, which relays unless it leads"},
			Server: "zamok", Open: openZamokHTTP, QueuesWaiters: true, OwnClientsMax: 256,
			ContendedClientsMax: 64, Once: true},
		{System: report.System{Name: "zamok-http-leader", Title: "zamok ×3, HTTP to the leader",
			Client:     "as above",
			Durability: "every grant on two disks of three"},
			Server: "zamok", Open: openZamokHTTPLeader, QueuesWaiters: true, OwnClientsMax: 256,
			ContendedClientsMax: 64, SpeedOnly: true, Once: true},
		{System: report.System{Name: "etcd", Title: "etcd ×3", Client: "etcd/client/v3/concurrency",
			Durability: "every grant on two disks of three"},
			Server: "etcd", Open: openEtcd, ExpiresHolders: true, QueuesWaiters: true},
		{System: report.System{Name: "zookeeper", Title: "ZooKeeper ×3", Client: "go-zookeeper/zk",
			Durability: "every grant on two disks of three",
			Notes: "the client's Lock has no TryLock: an ephemeral node of the lock's name " +
				"stands in, as in ZooKeeper's recipes"},
			Server: "zookeeper", Open: openZooKeeper, ExpiresHolders: true, QueuesWaiters: true,
			WarmUp: 20 * time.Second},
		{System: report.System{Name: "redis-aof", Title: "Redis, AOF always",
			Client:     "redsync on go-redis",
			Durability: "every grant on one disk",
			Notes:      "redsync gives up after 32 tries; the harness then calls it again"},
			Server: "redis-aof", Open: openRedsync, ExpiresHolders: true, ContendedClientsMax: 64},
		{System: report.System{Name: "redis-mem", Title: "Redis, no persistence",
			Client:     "redsync on go-redis",
			Durability: "nothing: a restart frees every lock"},
			Server: "redis-mem", Open: openRedsync, ExpiresHolders: true, ContendedClientsMax: 64,
			SpeedOnly: true, Once: true},
		{System: report.System{Name: "postgres", Title: "PostgreSQL advisory",
			Client: "pgx, pg_advisory_lock",
			Durability: "nothing: a restart frees every lock; no lease: a lock lasts as long as " +
				"its connection"},
			Server: "postgres", Open: openPostgres, OwnClientsMax: 1024, QueuesWaiters: true,
			Once: true},
	}
	all = append(all, historic()...)
	all = append(all, System{System: report.System{Name: "echo", Title: "gRPC echo",
		Client:     "zamok's wire, answered with nothing behind it",
		Durability: "nothing: it holds no lock"},
		Server: "echo", Open: openEcho, TransportOnly: true, Once: true})
	for _, s := range all {
		if s.ExpiresHolders && s.QueuesWaiters { // those with nodes
			s.Name, s.Nodes = report.Grown(s.Name), report.GrownNodes
			all = append(all, s)
		}
	}
	return all
}

// historic are locks as programs used to make them on stores that know none.
func historic() []System {
	return []System{
		{System: report.System{Name: "retry", Title: "retry lock, on etcd",
			Client:     "etcd/client/v3",
			Durability: "as etcd",
			Historic:   true,
			Notes: "a shadow row shows that no other client tries; random sleeps up to 1000 " +
				"ms after a holder was seen, up to 50 ms × attempt after a collision"},
			Server: "etcd", Open: openShadowRow, OwnClientsMax: 64, ContendedClientsMax: 16,
			Once: true},
		{System: report.System{Name: "queue", Title: "queue lock, on etcd",
			Client:     "etcd/client/v3",
			Durability: "as etcd",
			Historic:   true,
			Notes: "a row ordered by time; whose place is first holds the lock; the others " +
				"look every 50 ms"},
			Server: "etcd", Open: openRowQueue, OwnClientsMax: 64, ContendedClientsMax: 64,
			Once: true},
		{System: report.System{Name: "setnx", Title: "SETNX/GETSET, on Redis AOF",
			Client:     "go-redis",
			Durability: "every grant on one disk",
			Historic:   true,
			Notes:      "looks every 100 ms; unlocking does not compare, as in the original"},
			Server: "redis-aof", Open: openSetNX, OwnClientsMax: 64, ContendedClientsMax: 64,
			Once: true},
	}
}

// retry makes a Lock of a TryLock, which it calls until the lock is granted. After each failure it
// sleeps for delay.
func retry(
	try func(context.Context, string) (Unlock, error),
	delay func(attempt int, failed error) time.Duration,
) func(context.Context, string) (Unlock, error) {
	return func(ctx context.Context, key string) (Unlock, error) {
		for attempt := 1; ; attempt++ {
			unlock, err := try(ctx, key)
			if !errors.Is(err, ErrHeld) && !errors.Is(err, errCollision) {
				return unlock, err
			}
			if !loadgen.Sleep(ctx, delay(attempt, err)) {
				return nil, ctx.Err()
			}
		}
	}
}
