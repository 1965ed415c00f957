package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/rpc"
	"os"
	"sync"
	"time"
)

// subprocessVariable makes this program one of the run's own processes; it holds an order.
const subprocessVariable = "ZAMOK_JEPSEN_SUBPROCESS"

// subprocess configures such a process.
type subprocess struct {
	Kind      string // load or audit
	Name      string
	Seed      uint64
	Endpoints []string
	Address   string // the IP that its connections come from, by which the proxies know them
	Resource  string
	File      string // where its part of the history goes
}

func (o *subprocess) env() []string {
	text, err := json.Marshal(o)
	if err != nil {
		panic(err) // it is made of nothing that can't be encoded
	}
	return []string{subprocessVariable + "=" + string(text)}
}

// dialFrom dials from an address by which the proxies know the process.
func dialFrom(ip string) func(context.Context, string) (net.Conn, error) {
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
	return func(ctx context.Context, address string) (net.Conn, error) { return d.DialContext(ctx, "tcp", address) }
}

func (o *subprocess) randomFor(what string) *rand.Rand {
	h := uint64(14695981039346656037)
	for _, b := range []byte(o.Name + what) {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return rand.New(rand.NewPCG(o.Seed, h))
}

// runSubprocess is the life of such a process. It finishes when its standard input ends, and gives up some time later.
func runSubprocess(text string) error {
	var o subprocess
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	r, err := newRecorder(o.File)
	if err != nil {
		return err
	}
	ending, finish := context.WithCancel(context.Background())
	go func() { // until the process that started us closes it, or dies
		_, _ = io.Copy(io.Discard, os.Stdin)
		finish()
	}()
	ctx, cancel := context.WithCancel(context.Background())
	stop := context.AfterFunc(ending, func() { time.AfterFunc(drainMax+30*time.Second, cancel) })
	defer stop()
	defer cancel()
	looks, enough := context.WithCancel(context.Background())
	var looking sync.WaitGroup
	looking.Go(func() { r.recordStalls(looks, o.labels()) })
	switch o.Kind {
	case "load":
		err = o.runLoad(ctx, ending, r)
	case "audit":
		err = o.runAudit(ctx, ending, r)
	default:
		err = fmt.Errorf("%q is no kind of process", o.Kind)
	}
	enough()
	looking.Wait()
	if end := r.close(); err == nil {
		err = end
	}
	return err
}

// labels are the names of the clients of this process.
func (o *subprocess) labels() []string {
	if o.Kind == "audit" {
		return auditClients
	}
	return clientLabels(o.Name)
}

// runLoad is a program that uses locks.
func (o *subprocess) runLoad(ctx, over context.Context, r *recorder) error {
	var all []*recordedClient
	var work sync.WaitGroup
	for i, label := range clientLabels(o.Name) {
		c, err := newRecordedClient(o, r, clientConfig(i), label)
		if err != nil {
			return err
		}
		c.ctx, c.ending = ctx, over
		all = append(all, c)
		for n := range threadsPerClient {
			t, err := o.newWorker(c, fmt.Sprint("owner ", n))
			if err != nil {
				return err
			}
			work.Go(t.run)
		}
	}
	work.Wait()
	for _, c := range all {
		t, err := o.newWorker(c, "last")
		if err != nil {
			return err
		}
		t.finalCall()
		if err := c.Close(); err != nil {
			return err
		}
	}
	return nil
}

func (o *subprocess) newWorker(c *recordedClient, owner string) (*worker, error) {
	p, err := rpc.Dial("tcp", o.Resource)
	if err != nil {
		return nil, err
	}
	return &worker{recordedClient: c, Rand: o.randomFor(c.label + owner), owner: owner, resource: p}, nil
}
