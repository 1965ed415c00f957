package main

import (
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"net/rpc"
	"os"
	"sync"
	"time"

	"zamok/client"
	"zamok/jepsen/check"
	"zamok/jepsen/workload"
)

const (
	threadsPerClient = 10 // of each client
	// drainMax is how long a call may take that was under way at the healing.
	drainMax = 60 * time.Second
)

// setting is what all workers of the run have in common.
var setting = workload.Setting{
	Mutexes: 200, Pools: 16, WaitMax: 2 * time.Second, ThinkMax: 8 * time.Millisecond,
	HoldTime: func(random *rand.Rand) time.Duration {
		most := 8 * time.Millisecond
		if random.IntN(100) == 0 {
			most = 1500 * time.Millisecond
		}
		return time.Duration(random.Int64N(int64(most)))
	},
}

// clientLabels are the names of the clients of a process.
func clientLabels(process string) (all []string) {
	for i := range clientsPerProgram {
		all = append(all, fmt.Sprintf("%s.%d", process, i+1))
	}
	return all
}

// newClient makes a client whose connections come from an address of this process's own. It returns what its workers
// have in common.
func (o *subprocess) newClient(cfg client.Config, label string) (workload.Worker, error) {
	cfg.Endpoints, cfg.Label, cfg.Dialer = o.Endpoints, label, dialFrom(o.Address)
	cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	c, err := client.New(cfg)
	var mu sync.Mutex
	seen := map[uint64]bool{} // sessions that are recorded; guarded by mu
	put := func(line check.Record) {
		if h := line.Hold; h != nil {
			mu.Lock()
			defer mu.Unlock()
			if !seen[h.Session] {
				seen[h.Session] = true
				o.record.put(check.Record{Session: &check.Session{
					Session: h.Session, Client: label, TTL: cfg.TTL, ReleaseOnDisconnect: cfg.ReleaseOnDisconnect != 0,
				}})
			}
		}
		o.record.put(line)
	}
	return workload.Worker{
		Client: c, Recorder: &workload.Recorder{Present: monotonicNow, Put: put}, Setting: setting,
		Label: label, TTL: cfg.TTL, Ctx: o.ctx, Ending: o.ending,
	}, err
}

// newWorker makes an owner of locks, which writes to what they guard.
func (o *subprocess) newWorker(c workload.Worker, owner string) (*workload.Worker, error) {
	resource, err := rpc.Dial("tcp", o.Resource)
	if err != nil {
		return nil, err
	}
	h := fnv.New64a()
	h.Write([]byte(o.Name + c.Label + owner))
	c.Rand, c.Owner = rand.New(rand.NewPCG(o.Seed, h.Sum64())), owner
	c.Write = func(w check.Write) { _ = resource.Call("Resource.Write", w, new(bool)) } // without it there is no run any more
	return &c, nil
}
