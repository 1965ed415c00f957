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

// runScenarios plays the story.
func runScenarios(ctx context.Context, binary string) (err error) {
	dir, err := os.MkdirTemp("", "zamok-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	n, err := startNodes(binary, dir)
	if n != nil {
		defer n.stop()
	}
	if err != nil {
		return err
	}
	leader, err := n.leader(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("Three nodes run, %s leads. An account has %d. Two cash machines will draw %d each, at the same time.\n", leader, initialBalance, withdrawal)
	b, err := openBank()
	if err != nil {
		return err
	}
	defer b.close()
	for _, scenario := range []func(context.Context, *nodes, *bank) error{scenarioWithoutLock, scenarioLeaderKilled, scenarioPausedHolder} {
		if err := scenario(ctx, n, b); err != nil {
			return err
		}
	}
	fmt.Println("\nNow yours: `go run ./cmd/zamok dev`, and in another terminal `go run ./cmd/zamok lock stock -- date`.")
	return nil
}

func scenarioWithoutLock(ctx context.Context, n *nodes, b *bank) error {
	fmt.Print("\n1. Without a lock: each looks, counts the notes, and pays.\n\n")
	b.reset(false)
	c := newMachines(ctx, n, b, 0)
	defer c.killAll()
	for _, name := range []string{"A", "B"} {
		if err := c.start(name); err != nil {
			return err
		}
	}
	if err := errors.Join(c.wait("A"), c.wait("B")); err != nil {
		return err
	}
	balance, _ := b.state()
	fmt.Printf("\n   The account has %d: it was drawn twice.\n", balance)
	return expect(balance == initialBalance-2*withdrawal, "both machines should have paid")
}

func scenarioLeaderKilled(ctx context.Context, n *nodes, b *bank) error {
	fmt.Print("\n2. With a lock around it, and the leading node is killed in the middle.\n\n")
	b.reset(true)
	c := newMachines(ctx, n, b, client.DefaultTTL)
	defer c.killAll()
	if err := c.start("A"); err != nil {
		return err
	}
	if err := c.awaitOutput("A", "holds"); err != nil {
		return err
	}
	if err := c.start("B"); err != nil {
		return err
	}
	if err := errors.Join(c.awaitOutput("A", "sees"), c.awaitOutput("B", "asks")); err != nil {
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
	if err := errors.Join(c.wait("A"), c.wait("B")); err != nil {
		return err
	}
	balance, _ := b.state()
	fmt.Printf("\n   The account has %d: exactly one got the money.\n", balance)
	return expect(balance == initialBalance-withdrawal, "exactly one machine should have paid")
}

func scenarioPausedHolder(ctx context.Context, n *nodes, b *bank) error {
	fmt.Printf("\n3. Machine A is stopped while it counts, for longer than its lease of %v, and does not know.\n\n", shortTTL)
	b.reset(true)
	c := newMachines(ctx, n, b, shortTTL)
	defer c.killAll()
	if err := c.start("A"); err != nil {
		return err
	}
	if err := c.awaitOutput("A", "sees"); err != nil {
		return err
	}
	if err := c.signal("A", syscall.SIGSTOP); err != nil {
		return err
	}
	fmt.Println("   (machine A is stopped)")
	if err := c.start("B"); err != nil {
		return err
	}
	if err := c.wait("B"); err != nil {
		return err
	}
	fmt.Println("   (machine A wakes up and continues as if nothing had happened)")
	if err := c.signal("A", syscall.SIGCONT); err != nil {
		return err
	}
	if err := c.wait("A"); err != nil {
		return err
	}
	balance, rejected := b.state()
	fmt.Printf("\n   The account has %d: no lease can stop a sleeper, and the token does.\n", balance)
	return expect(balance == initialBalance-withdrawal && rejected == 1, "machine B should have paid, and A been refused")
}

func expect(ok bool, what string) error {
	if !ok {
		return errors.New("the act did not end as announced: " + what)
	}
	return nil
}

// machines are the machines of an act.
type machines struct {
	ctx     context.Context
	nodes   *nodes
	bank    *bank
	ttl     time.Duration // of the machines' leases; 0 = they use no lock
	running map[string]*machineProcess
}

// machineProcess is the process of a machine.
type machineProcess struct {
	cmd    *exec.Cmd
	output chan string // its lines, already printed; closed at its end
}

// outputLinesMax is more than a machine prints.
const outputLinesMax = 100

func newMachines(ctx context.Context, n *nodes, b *bank, ttl time.Duration) *machines {
	return &machines{ctx: ctx, nodes: n, bank: b, ttl: ttl, running: make(map[string]*machineProcess)}
}

func (c *machines) start(name string) error {
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
	a := &machineProcess{cmd: cmd, output: make(chan string, outputLinesMax)}
	go func() { // ends with the process; leaves waits for it
		defer close(a.output)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			fmt.Println("   " + lines.Text())
			a.output <- lines.Text()
		}
	}()
	c.running[name] = a
	return nil
}

// awaitOutput waits for a word of a machine.
func (c *machines) awaitOutput(name, word string) error {
	for line := range c.running[name].output {
		if strings.Contains(line, word) {
			return nil
		}
	}
	return fmt.Errorf("machine %s ended before it printed %q", name, word)
}

// wait waits for a machine's end.
func (c *machines) wait(name string) error {
	a := c.running[name]
	for range a.output { // all of it is printed
	}
	delete(c.running, name)
	return a.cmd.Wait()
}

func (c *machines) signal(name string, s syscall.Signal) error {
	return c.running[name].cmd.Process.Signal(s)
}

// killAll ends the machines that are left after a failure.
func (c *machines) killAll() {
	for name, a := range c.running {
		_ = a.cmd.Process.Kill()
		_ = c.wait(name)
	}
}
