package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"zamok/client"
	"zamok/client/admin"
)

// nodes are three processes of `zamok server`.
type nodes struct {
	dir       string
	endpoints []string
	processes map[string]*exec.Cmd // by id
}

func startNodes(binary, dir string) (*nodes, error) {
	addresses, err := freeAddresses(6)
	if err != nil {
		return nil, err
	}
	clients, peers := addresses[:3], addresses[3:]
	n := &nodes{dir: dir, endpoints: clients, processes: make(map[string]*exec.Cmd)}
	cluster := fmt.Sprintf("n1=%s,n2=%s,n3=%s", peers[0], peers[1], peers[2])
	for i, address := range clients {
		id := fmt.Sprintf("n%d", i+1)
		log, err := os.Create(filepath.Join(dir, id+".log"))
		if err != nil {
			return n, err
		}
		cmd := exec.Command(binary, "server", "--id", id, "--data", filepath.Join(dir, id),
			"--cluster", cluster,
			"--listen", address, "--http", "", "--election-timeout", "250ms")
		cmd.Stdout, cmd.Stderr = log, log
		if err := errors.Join(cmd.Start(), log.Close()); err != nil {
			return n, err
		}
		n.processes[id] = cmd
	}
	return n, nil
}

// freeAddresses finds unused ports.
func freeAddresses(count int) ([]string, error) {
	var addresses []string
	for range count {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer listener.Close() // at the end, so that the ports differ
		addresses = append(addresses, listener.Addr().String())
	}
	return addresses, nil
}

// leader waits until a node leads, and returns its id.
func (n *nodes) leader(ctx context.Context) (string, error) {
	c, err := client.New(client.Config{Endpoints: n.endpoints})
	if err != nil {
		return "", err
	}
	defer c.Close()
	retry := time.NewTicker(50 * time.Millisecond)
	defer retry.Stop()
	for {
		members, _, err := admin.New(c).Members(ctx)
		for _, m := range members {
			if m.Leader {
				return m.ID, nil
			}
		}
		select {
		case <-retry.C:
		case <-ctx.Done():
			return "", fmt.Errorf("no node leads: %w (%w); their logs:\n%s", ctx.Err(), err,
				n.logTails())
		}
	}
}

// kill ends a node by kill -9.
func (n *nodes) kill(id string) error {
	cmd := n.processes[id]
	delete(n.processes, id)
	if err := cmd.Process.Kill(); err != nil {
		return err
	}
	_ = cmd.Wait() // its error is the signal
	return nil
}

func (n *nodes) stop() {
	for id := range n.processes {
		_ = n.kill(id) // its data is not needed
	}
}

// logTails are the last lines of the logs of the nodes.
func (n *nodes) logTails() string {
	var all []string
	logs, _ := filepath.Glob(filepath.Join(n.dir, "*.log")) // its error is about the pattern
	for _, log := range logs {
		text, _ := os.ReadFile(log)
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		all = append(all, lines[max(0, len(lines)-3):]...)
	}
	return strings.Join(all, "\n")
}
