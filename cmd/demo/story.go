package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"zamok/client"
)

// tell plays the story.
func tell(ctx context.Context, binary string) (err error) {
	dir, err := os.MkdirTemp("", "zamok-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	n, err := startNodes(binary, dir)
	if n != nil {
		defer n.end()
	}
	if err != nil {
		return err
	}
	leader, err := n.leader(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("Three nodes run, %s leads. An account has %d. Two cash machines will draw %d each, at the same time.\n", leader, savings, price)
	b, err := openBank()
	if err != nil {
		return err
	}
	defer b.close()
	for _, act := range []func(context.Context, *nodes, *bank) error{withoutLock, withLock, withSleeper} {
		if err := act(ctx, n, b); err != nil {
			return err
		}
	}
	fmt.Println("\nNow yours: `go run ./cmd/zamok dev`, and in another terminal `go run ./cmd/zamok lock stock -- date`.")
	return nil
}

func withoutLock(ctx context.Context, n *nodes, b *bank) error {
	fmt.Print("\n1. Without a lock: each looks, counts the notes, and pays.\n\n")
	b.begin(false)
	c := newCast(ctx, n, b, 0)
	defer c.end()
	for _, name := range []string{"A", "B"} {
		if err := c.enter(name); err != nil {
			return err
		}
	}
	if err := errors.Join(c.leaves("A"), c.leaves("B")); err != nil {
		return err
	}
	balance, _ := b.state()
	fmt.Printf("\n   The account has %d: it was drawn twice.\n", balance)
	return expect(balance == savings-2*price, "both machines should have paid")
}

func withLock(ctx context.Context, n *nodes, b *bank) error {
	fmt.Print("\n2. With a lock around it, and the leading node is killed in the middle.\n\n")
	b.begin(true)
	c := newCast(ctx, n, b, client.DefaultTTL)
	defer c.end()
	if err := c.enter("A"); err != nil {
		return err
	}
	if err := c.until("A", "holds"); err != nil {
		return err
	}
	if err := c.enter("B"); err != nil {
		return err
	}
	if err := errors.Join(c.until("A", "sees"), c.until("B", "asks")); err != nil {
		return err
	}
	leader, err := n.leader(ctx)
	if err != nil {
		return err
	}
	if err := n.kill(leader); err != nil {
		return err
	}
	fmt.Printf("   (kill -9 of %s, which led)\n", leader)
	if err := errors.Join(c.leaves("A"), c.leaves("B")); err != nil {
		return err
	}
	balance, _ := b.state()
	fmt.Printf("\n   The account has %d: exactly one got the money.\n", balance)
	return expect(balance == savings-price, "exactly one machine should have paid")
}

func withSleeper(ctx context.Context, n *nodes, b *bank) error {
	fmt.Printf("\n3. Machine A is stopped while it counts, for longer than its lease of %v, and does not know.\n\n", shortTTL)
	b.begin(true)
	c := newCast(ctx, n, b, shortTTL)
	defer c.end()
	if err := c.enter("A"); err != nil {
		return err
	}
	if err := c.until("A", "sees"); err != nil {
		return err
	}
	if err := c.signal("A", syscall.SIGSTOP); err != nil {
		return err
	}
	fmt.Println("   (machine A is stopped)")
	if err := c.enter("B"); err != nil {
		return err
	}
	if err := c.leaves("B"); err != nil {
		return err
	}
	fmt.Println("   (machine A wakes up, and goes on as if nothing had happened)")
	if err := c.signal("A", syscall.SIGCONT); err != nil {
		return err
	}
	if err := c.leaves("A"); err != nil {
		return err
	}
	balance, refused := b.state()
	fmt.Printf("\n   The account has %d: no lease can stop a sleeper, and the token does.\n", balance)
	return expect(balance == savings-price && refused == 1, "machine B should have paid, and A been refused")
}

func expect(right bool, what string) error {
	if !right {
		return errors.New("the act did not end as told: " + what)
	}
	return nil
}

// cast are the machines of an act.
type cast struct {
	ctx   context.Context
	nodes *nodes
	bank  *bank
	ttl   time.Duration // of the machines' leases; 0 = they use no lock
	on    map[string]*actor
}

// actor is the process of a machine.
type actor struct {
	cmd  *exec.Cmd
	said chan string // what it said, printed already; closed when it says no more
}

// linesMax is more than a machine says.
const linesMax = 100

func newCast(ctx context.Context, n *nodes, b *bank, ttl time.Duration) *cast {
	return &cast{ctx: ctx, nodes: n, bank: b, ttl: ttl, on: make(map[string]*actor)}
}

func (c *cast) enter(name string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(c.ctx, self, "machine", name, c.bank.url, strings.Join(c.nodes.endpoints, ","), c.ttl.String())
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	a := &actor{cmd: cmd, said: make(chan string, linesMax)}
	go func() { // ends with the process; leaves waits for it
		defer close(a.said)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			fmt.Println("   " + lines.Text())
			a.said <- lines.Text()
		}
	}()
	c.on[name] = a
	return nil
}

// until waits for a word of a machine.
func (c *cast) until(name, word string) error {
	for line := range c.on[name].said {
		if strings.Contains(line, word) {
			return nil
		}
	}
	return fmt.Errorf("machine %s ended before it said %q", name, word)
}

// leaves waits for a machine's end.
func (c *cast) leaves(name string) error {
	a := c.on[name]
	for range a.said { // all of it is printed
	}
	delete(c.on, name)
	return a.cmd.Wait()
}

func (c *cast) signal(name string, s syscall.Signal) error { return c.on[name].cmd.Process.Signal(s) }

// end ends who is still there after a failure.
func (c *cast) end() {
	for name, a := range c.on {
		_ = a.cmd.Process.Kill()
		_ = c.leaves(name)
	}
}
