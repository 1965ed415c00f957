package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"
)

// orderVariable makes this program one of the run's own processes; it holds an order.
const orderVariable = "ZAMOK_JEPSEN_SUBPROCESS"

// order says what such a process is.
type order struct {
	Kind      string // load or audit
	Name      string
	Seed      uint64
	Endpoints []string
	Address   string // the IP that its connections come from: by it the fabric knows whose they are
	Resource  string
	File      string // where its part of the history goes
	Gaps      string // audit: where it says what it did not see
	Clients   int
}

func (o *order) env() []string {
	text, err := json.Marshal(o)
	if err != nil {
		panic(err) // it is made of nothing that can't be encoded
	}
	return []string{orderVariable + "=" + string(text)}
}

// dialFrom dials from an address of its own, by which the fabric knows whose a connection is.
func dialFrom(ip string) func(context.Context, string) (net.Conn, error) {
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
	return func(ctx context.Context, address string) (net.Conn, error) { return d.DialContext(ctx, "tcp", address) }
}

func (o *order) random(what string) *rand.Rand {
	h := uint64(14695981039346656037)
	for _, b := range []byte(o.Name + what) {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return rand.New(rand.NewPCG(o.Seed, h))
}

// obey is the life of such a process. It finishes when its standard input ends, and gives up some time later.
func obey(text string) error {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	r, err := newRecord(o.File)
	if err != nil {
		return err
	}
	over, finish := context.WithCancel(context.Background())
	go func() { // until the process that started us closes it, or dies
		_, _ = io.Copy(io.Discard, os.Stdin)
		finish()
	}()
	ctx, giveUp := context.WithCancel(context.Background())
	stop := context.AfterFunc(over, func() { time.AfterFunc(drainMost+30*time.Second, giveUp) })
	defer stop()
	defer giveUp()
	looks, enough := context.WithCancel(context.Background())
	var looking sync.WaitGroup
	looking.Go(func() { r.stalls(looks, o.labels()) })
	switch o.Kind {
	case "load":
		err = o.load(ctx, over, r)
	case "audit":
		err = o.audit(ctx, over, r)
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
func (o *order) labels() (all []string) {
	if o.Kind == "audit" {
		return auditors
	}
	for i := range o.Clients {
		all = append(all, labelOf(o.Name, i))
	}
	return all
}

// load is a program that uses locks.
func (o *order) load(ctx, over context.Context, r *record) error {
	var all []*caller
	var work sync.WaitGroup
	for i := range o.Clients {
		c, err := newCaller(o, r, settings(i), labelOf(o.Name, i))
		if err != nil {
			return err
		}
		c.ctx, c.over = ctx, over
		all = append(all, c)
		for n := range threadsOf {
			t, err := o.thread(c, fmt.Sprint("owner ", n))
			if err != nil {
				return err
			}
			work.Go(t.run)
		}
	}
	work.Wait()
	for _, c := range all {
		t, err := o.thread(c, "last")
		if err != nil {
			return err
		}
		t.last()
		if err := c.Close(); err != nil {
			return err
		}
	}
	return nil
}

func (o *order) thread(c *caller, owner string) (*thread, error) {
	p, err := newPen(o.Resource)
	if err != nil {
		return nil, err
	}
	return &thread{caller: c, Rand: o.random(c.label + owner), owner: owner, pen: p}, nil
}
