package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"
	"sync"
	"time"

	"zamok/api"
	"zamok/client"
	"zamok/raftnode"
)

// node is a cluster of one node in this process, for the examples. Programs know the addresses of
// theirs.
func node() (address string, end func()) {
	n, err := api.StartNode(context.Background(), api.NodeConfig{Config: raftnode.Config{ID: "n1"}})
	if err != nil {
		log.Fatal(err)
	}
	return n.Client(), func() { _ = n.Kill() }
}

// dial connects two programs.
func dial(address string) (a, b *client.Client) {
	var err error
	if a, err = client.Dial(context.Background(), address); err != nil {
		log.Fatal(err)
	}
	if b, err = client.Dial(context.Background(), address); err != nil {
		log.Fatal(err)
	}
	return a, b
}

// Mandatory: both must act, one after the other. Two cash machines draw 150 each from an account of
// 200.
func ExampleClient_Lock() {
	address, end := node()
	defer end()
	a, b := dial(address)
	defer a.Close()
	defer b.Close()

	account := 200
	var both sync.WaitGroup
	for _, machine := range []*client.Client{a, b} {
		both.Go(func() {
			ctx := context.Background()
			lock, err := machine.Lock(ctx, "account/200")
			if err != nil {
				log.Fatal(err)
			}
			defer lock.Unlock(ctx)
			if account >= 150 { // a real account also checks lock.Token()
				account -= 150
			}
		})
	}
	both.Wait()
	fmt.Println("left:", account)
	// Output:
	// left: 50
}

// Soft: one suffices. Two servers see that a message is due; one sends it.
func ExampleClient_TryLock() {
	address, end := node()
	defer end()
	a, b := dial(address)
	defer a.Close()
	defer b.Close()

	ctx := context.Background()
	for _, server := range []*client.Client{a, b} {
		lock, err := server.TryLock(ctx, "message/17")
		switch {
		case errors.Is(err, client.ErrNotAcquired):
			fmt.Println("another process sends it")
		case err != nil:
			log.Fatal(err)
		default:
			fmt.Println("sent")
			defer lock.Unlock(ctx) // when it is marked as sent
		}
	}
	// Output:
	// sent
	// another process sends it
}

// Patience: a program waits for a while, and does something else if another one is not ready by
// then.
func ExampleWithWait() {
	address, end := node()
	defer end()
	a, b := dial(address)
	defer a.Close()
	defer b.Close()

	ctx := context.Background()
	if _, err := a.Lock(ctx, "report"); err != nil {
		log.Fatal(err)
	}
	_, err := b.TryLock(ctx, "report", client.WithWait(100*time.Millisecond))
	fmt.Println(errors.Is(err, client.ErrNotAcquired)) // the wait timed out
	// Output:
	// true
}

// One runner for an application: every instance does this, one of them runs, and another takes over
// when that one ends, or is cut off.
func ExampleClient_Do() {
	address, end := node()
	defer end()
	a, b := dial(address)
	defer a.Close()
	defer b.Close()

	ctx, stop := context.WithCancel(context.Background())
	runs := make(chan string, 2)
	instance := func(c *client.Client, name string) {
		for ctx.Err() == nil {
			err := c.Do(ctx, "application/runner",
				func(ctx context.Context, lock *client.Lock) error {
					runs <- name
					<-ctx.Done() // the work, which ends when the lock is lost
					return context.Cause(ctx)
				})
			if err != nil && ctx.Err() == nil {
				// lost, or the work failed: stand in line again
				continue
			}
		}
	}
	var all sync.WaitGroup
	all.Go(func() { instance(a, "first") })
	fmt.Println(<-runs)
	all.Go(func() { instance(b, "second") })
	a.Close() // the first instance is shut down
	fmt.Println(<-runs)
	stop()
	all.Wait()
	// Output:
	// first
	// second
}

// One worker for each segment of a table of tasks: a worker takes a segment that is free.
func ExampleClient_TryLock_segments() {
	address, end := node()
	defer end()
	a, b := dial(address)
	defer a.Close()
	defer b.Close()

	ctx := context.Background()
	take := func(c *client.Client, segments int) (taken []string) {
		for i := range segments {
			lock, err := c.TryLock(ctx, fmt.Sprintf("tasks/%d", i))
			if errors.Is(err, client.ErrNotAcquired) {
				continue
			}
			if err != nil {
				log.Fatal(err)
			}
			taken = append(taken, lock.Name())
			if len(taken) == 2 { // enough for one worker; it unlocks them when it is done
				break
			}
		}
		return taken
	}
	fmt.Println(take(a, 4))
	fmt.Println(take(b, 4))
	// Output:
	// [tasks/0 tasks/1]
	// [tasks/2 tasks/3]
}

// A callback for loss. It does not run when the lock is unlocked.
func ExampleLock_Context() {
	address, end := node()
	defer end()
	a, b := dial(address)
	defer a.Close()
	defer b.Close()

	ctx := context.Background()
	lock, err := a.Lock(ctx, "x", client.WithMaxHold(time.Second))
	if err != nil {
		log.Fatal(err)
	}
	called := make(chan struct{})
	context.AfterFunc(lock.Context(), func() {
		fmt.Println(strings.Contains(lock.Err().Error(), "maximum hold"),
			errors.Is(lock.Err(), client.ErrLost))
		close(called)
	})
	<-called
	// Output:
	// true true
}

// An epoch with candidates: one is elected, and everybody can see who.
func ExampleElection() {
	address, end := node()
	defer end()
	a, b := dial(address)
	defer a.Close()
	defer b.Close()

	ctx := context.Background()
	leadership, err := a.Election("scheduler").Campaign(ctx, []byte("host-a:9000"))
	if err != nil {
		log.Fatal(err)
	}
	leader, elected, err := b.Election("scheduler").Leader(ctx)
	fmt.Println(string(leader.Value), elected, err, leader.Token == leadership.Token())
	// Output:
	// host-a:9000 true <nil> true
}

// Several locks at once, all or none: transfers in both directions can't deadlock.
func ExampleClient_LockAll() {
	address, end := node()
	defer end()
	a, b := dial(address)
	defer a.Close()
	defer b.Close()

	ctx := context.Background()
	var both sync.WaitGroup
	transfer := func(c *client.Client, from, to string) {
		lock, err := c.LockAll(ctx,
			[]client.Item{client.ExclusiveItem(from), client.ExclusiveItem(to)})
		if err != nil {
			log.Fatal(err)
		}
		defer lock.Unlock(ctx)
	}
	both.Go(func() { transfer(a, "account/1", "account/2") })
	both.Go(func() { transfer(b, "account/2", "account/1") })
	both.Wait()
	fmt.Println("done")
	// Output:
	// done
}
