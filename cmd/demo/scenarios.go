package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"zamok/client"
)

// runScenarios starts the nodes and the bank, and runs the acts.
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
	fmt.Printf("Three nodes run, %s leads. An account has %d. Two cash machines will draw %d "+
		"each, at the same time.\n", leader, initialBalance, withdrawal)
	b := &Bank{}
	address, err := b.serve()
	if err != nil {
		return err
	}
	for _, scenario := range []func(*act){withoutLock, leaderKilled, pausedHolder} {
		a := &act{ctx: ctx, nodes: n, bank: b, bankAddress: address,
			running: make(map[string]*machineProcess)}
		scenario(a)
		a.killAll()
		if a.err != nil {
			return a.err
		}
	}
	fmt.Println("\nNow yours: `go run ./cmd/zamok dev`, and in another terminal `go run " +
		"./cmd/zamok lock stock -- date`.")
	return nil
}

func withoutLock(a *act) {
	fmt.Print(
		"\n1. Without a lock: each machine reads the balance, counts the notes, and pays.\n\n")
	a.bank.reset(false)
	a.start("A")
	a.start("B")
	a.wait("A")
	a.wait("B")
	a.expect(initialBalance-2*withdrawal, 0, "both paid out")
}

func leaderKilled(a *act) {
	fmt.Print("\n2. With a lock around that, and the leader is killed in the middle.\n\n")
	a.bank.reset(true)
	a.ttl = client.DefaultTTL
	a.start("A")
	a.awaitOutput("A", "holds")
	a.start("B")
	a.awaitOutput("A", "sees")
	a.awaitOutput("B", "requests")
	a.killLeader()
	a.wait("A")
	a.wait("B")
	a.expect(initialBalance-withdrawal, 0, "exactly one paid out")
}

func pausedHolder(a *act) {
	fmt.Printf("\n3. Machine A is paused while it counts, for longer than its lease of %v, and "+
		"does not know it.\n\n", shortTTL)
	a.bank.reset(true)
	a.ttl = shortTTL
	a.start("A")
	a.awaitOutput("A", "sees")
	a.signal("A", syscall.SIGSTOP, "machine A is paused")
	a.start("B")
	a.wait("B")
	a.signal("A", syscall.SIGCONT, "machine A continues as if nothing had happened")
	a.wait("A")
	a.expect(initialBalance-withdrawal, 1,
		"a lease can't stop a paused process, but the token does")
}

// act is one act with its machines. After an error its other steps are skipped.
type act struct {
	ctx         context.Context
	nodes       *nodes
	bank        *Bank
	bankAddress string
	ttl         time.Duration // of the machines' leases; 0 = they use no lock
	running     map[string]*machineProcess
	err         error // the first
}

// do runs a step, unless one before it failed.
func (a *act) do(step func() error) {
	if a.err == nil {
		a.err = step()
	}
}

// expect checks the balance, and the number of payments that were rejected for their tokens.
func (a *act) expect(balance, rejected int, what string) {
	a.do(func() error {
		a.bank.mu.Lock()
		defer a.bank.mu.Unlock()
		if b, r := a.bank.balance, a.bank.rejected; b != balance || r != rejected {
			return fmt.Errorf("the act did not end as announced: a balance of %d, not %d; %d "+
				"payments rejected, not %d", b, balance, r, rejected)
		}
		fmt.Printf("\n   The account has %d: %s.\n", balance, what)
		return nil
	})
}

func (a *act) killLeader() {
	a.do(func() error {
		leader, err := a.nodes.leader(a.ctx)
		if err != nil {
			return err
		}
		fmt.Printf("   (kill -9 of %s, which led)\n", leader)
		return a.nodes.kill(leader)
	})
}

// machineProcess is the process of a machine.
type machineProcess struct {
	cmd    *exec.Cmd
	output chan string // its lines, already printed; closed at its end
}

// outputLinesMax is more than a machine prints.
const outputLinesMax = 100

func (a *act) start(name string) {
	a.do(func() error {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(a.ctx, self, "machine", name, a.bankAddress,
			strings.Join(a.nodes.endpoints, ","), a.ttl.String())
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		m := &machineProcess{cmd: cmd, output: make(chan string, outputLinesMax)}
		if err := cmd.Start(); err != nil {
			return err
		}
		go func() { // ends with the process; wait waits for it
			defer close(m.output)
			for lines := bufio.NewScanner(out); lines.Scan(); {
				fmt.Println("   " + lines.Text())
				m.output <- lines.Text()
			}
		}()
		a.running[name] = m
		return nil
	})
}

// awaitOutput waits until a machine prints a line with a word.
func (a *act) awaitOutput(name, word string) {
	a.do(func() error {
		for line := range a.running[name].output {
			if strings.Contains(line, word) {
				return nil
			}
		}
		return fmt.Errorf("machine %s ended before it printed %q", name, word)
	})
}

// wait waits for a machine's end.
func (a *act) wait(name string) {
	a.do(func() error { return a.end(name) })
}

func (a *act) end(name string) error {
	m := a.running[name]
	for range m.output { // until all of it is printed
	}
	delete(a.running, name)
	return m.cmd.Wait()
}

func (a *act) signal(name string, s syscall.Signal, what string) {
	a.do(func() error {
		fmt.Printf("   (%s)\n", what)
		return a.running[name].cmd.Process.Signal(s)
	})
}

// killAll ends the machines that still run after a failure.
func (a *act) killAll() {
	for name, m := range a.running {
		_ = m.cmd.Process.Kill()
		_ = a.end(name)
	}
}
