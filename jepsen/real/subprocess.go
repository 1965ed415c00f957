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

// subprocessVariable is the environment variable that makes this program a subprocess of a run. Its
// value is a subprocess as JSON.
const subprocessVariable = "ZAMOK_JEPSEN_SUBPROCESS"

// subprocess is a client process or the audit of a run.
type subprocess struct {
	Name      string // "audit", or a program's
	Seed      uint64
	Endpoints []string
	Address   string // the source IP of its connections, by which the proxies know it
	Resource  string
	File      string // of its part of the history

	record *recorder
	ctx    context.Context // ends when it gives up
	ending context.Context // ends when nothing new is to begin
}

// dialFrom dials from an address, by which the proxies know the process.
func dialFrom(ip string) func(context.Context, string) (net.Conn, error) {
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
	return func(ctx context.Context, address string) (net.Conn, error) {
		return d.DialContext(ctx, "tcp", address)
	}
}

// runSubprocess runs a subprocess. It finishes when its standard input ends, and gives up some time
// later.
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

// runLoad runs the workers of a program until they finish, and makes the last calls of its clients.
func (o *subprocess) runLoad() error {
	var last []*workload.Worker // one of each client
	var work sync.WaitGroup
	for _, label := range clientLabels(o.Name) {
		workers, err := o.newWorkers(label, threadsPerClient)
		if err != nil {
			return err
		}
		for _, w := range workers {
			work.Go(w.Run)
		}
		last = append(last, workers[0])
	}
	work.Wait()
	for _, w := range last {
		w.FinalCall()
		if err := w.Close(); err != nil {
			return err
		}
	}
	return nil
}

const (
	threadsPerClient = 10 // of each client
	// drainMax is how long a call may take after the healing.
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
		return workload.UpTo(random, most)
	},
}

// clientLabels are the names of the clients of a process.
func clientLabels(process string) (all []string) {
	for i := range clientsPerProgram {
		all = append(all, fmt.Sprintf("%s.%d", process, i+1))
	}
	return all
}

// configOf derives a client's settings from its label: a program's clients are numbered, the
// audit's are not.
func configOf(label string) client.Config {
	_, number, _ := strings.Cut(label, ".")
	if n, err := strconv.Atoi(number); err == nil {
		return workload.ClientConfig(n - 1)
	}
	return client.Config{TTL: 5 * time.Second}
}

// newWorkers makes a client, whose connections come from the address of this process, and workers
// that use it together.
func (o *subprocess) newWorkers(label string, many int) (all []*workload.Worker, err error) {
	cfg := configOf(label)
	cfg.Endpoints, cfg.Label, cfg.Dialer = o.Endpoints, label, dialFrom(o.Address)
	cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr,
		&slog.HandlerOptions{Level: slog.LevelError}))
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
			Client: c, Rand: rand.New(rand.NewPCG(o.Seed, h.Sum64())), Recorder: &o.record.Recorder,
			Setting: setting,
			Label:   label, Owner: fmt.Sprint("owner ", n), TTL: cfg.TTL, Ctx: o.ctx,
			Ending: o.ending,
			// A call fails only when the main process has ended, and the run with it.
			Write: func(w check.Write) { _ = resource.Call("Resource.Write", w, new(int)) },
		})
	}
	return all, nil
}
