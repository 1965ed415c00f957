package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/rpc"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"zamok/client"
	"zamok/jepsen/check"
	"zamok/jepsen/workload"
)

// subprocessVariable makes this program one of the run's own processes; it holds an order.
const subprocessVariable = "ZAMOK_JEPSEN_SUBPROCESS"

// subprocess configures such a process.
type subprocess struct {
	Name      string // "audit", or a program's
	Seed      uint64
	Endpoints []string
	Address   string // the IP that its connections come from, by which the proxies know them
	Resource  string
	File      string // where its part of the history goes

	record *recorder
	ctx    context.Context // ends when it gives up
	ending context.Context // ends when nothing new is to begin
}

// dialFrom dials from an address by which the proxies know the process.
func dialFrom(ip string) func(context.Context, string) (net.Conn, error) {
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
	return func(ctx context.Context, address string) (net.Conn, error) { return d.DialContext(ctx, "tcp", address) }
}

// runSubprocess is the life of such a process. It finishes when its standard input ends, and gives up some time later.
func runSubprocess(text string) (err error) {
	var o subprocess
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	if o.record, err = newRecorder(o.File); err != nil {
		return err
	}
	var finish, cancel context.CancelFunc
	o.ending, finish = context.WithCancel(context.Background())
	o.ctx, cancel = context.WithCancel(context.Background())
	defer cancel()
	go func() { // until the process that started us closes it, or dies
		_, _ = io.Copy(io.Discard, os.Stdin)
		finish()
		time.AfterFunc(drainMax+30*time.Second, cancel)
	}()
	labels, do := clientLabels(o.Name), o.runLoad
	if o.Name == "audit" {
		labels, do = auditClients, o.runAudit
	}
	go o.record.recordStalls(o.ctx, labels) // until this process ends
	return errors.Join(do(), o.record.close())
}

// runLoad is a program that uses locks.
func (o *subprocess) runLoad() error {
	var last []*workload.Worker // one of each client
	var work sync.WaitGroup
	for _, label := range clientLabels(o.Name) {
		workers, err := o.newWorkers(label, threadsPerClient)
		if err != nil {
			return err
		}
		for _, t := range workers {
			work.Go(t.Run)
		}
		last = append(last, workers[0])
	}
	work.Wait()
	for _, t := range last {
		t.FinalCall()
		if err := t.Close(); err != nil {
			return err
		}
	}
	return nil
}

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

// configOf derives a client's settings from its label: a program's clients are numbered, the audit's are not.
func configOf(label string) client.Config {
	_, number, _ := strings.Cut(label, ".")
	if n, err := strconv.Atoi(number); err == nil {
		return workload.ClientConfig(n - 1)
	}
	return client.Config{TTL: 5 * time.Second}
}

// newWorkers makes a client, whose connections come from an address of this process's own, and owners of locks who share it
// and write to what the locks guard.
func (o *subprocess) newWorkers(label string, many int) (all []*workload.Worker, err error) {
	cfg := configOf(label)
	cfg.Endpoints, cfg.Label, cfg.Dialer = o.Endpoints, label, dialFrom(o.Address)
	cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	c, err := client.New(cfg)
	if err != nil {
		return nil, err
	}
	resource, err := rpc.DialHTTP("tcp", o.Resource)
	if err != nil {
		return nil, err
	}
	for n := range many {
		h := fnv.New64a()
		fmt.Fprint(h, o.Name, label, n)
		all = append(all, &workload.Worker{
			Client: c, Rand: rand.New(rand.NewPCG(o.Seed, h.Sum64())), Recorder: &o.record.Recorder, Setting: setting,
			Label: label, Owner: fmt.Sprint("owner ", n), TTL: cfg.TTL, Ctx: o.ctx, Ending: o.ending,
			// Without the process that has the resource there is no run any more.
			Write: func(w check.Write) { _ = resource.Call("Resource.Write", w, new(int)) },
		})
	}
	return all, nil
}
