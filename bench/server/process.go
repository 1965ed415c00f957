package server

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// stopTimeout is how long a process may take to end after its stop signal, before it is killed.
const stopTimeout = 10 * time.Second

// command is how to start one process.
type command struct {
	path       string
	args       []string
	stopSignal os.Signal // nil = kill: its data is not needed
}

// process is one process that this package has started.
type process struct {
	command
	name, log string
	cmd       *exec.Cmd
	stop      func()        // ends the process and waits for its end
	done      chan struct{} // closed when it has ended and was waited for
	err       error         // set before done is closed
}

func (p *process) start() error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own descriptor
	ctx, cancel := context.WithCancel(context.Background())
	cmd, done := exec.CommandContext(ctx, p.path, p.args...), make(chan struct{})
	cmd.Stdout, cmd.Stderr = log, log
	if p.stopSignal != nil {
		cmd.Cancel = func() error { return cmd.Process.Signal(p.stopSignal) }
		cmd.WaitDelay = stopTimeout
	}
	// A group of its own, so that an interrupt at the terminal reaches only this process, which
	// ends it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		cancel()
		return fmt.Errorf("%s was not started: %w", p.name, err)
	}
	p.cmd, p.done = cmd, done
	p.stop = func() {
		cancel()
		<-done
	}
	go func() { // ends with the process; stop waits for it
		p.err = cmd.Wait()
		close(done)
	}()
	return nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// alive returns an error with the end of the log if the process has ended.
func (p *process) alive() error {
	select {
	case <-p.done:
		text, _ := os.ReadFile(p.log)
		lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
		tail := bytes.Join(lines[max(0, len(lines)-5):], []byte("\n"))
		return fmt.Errorf("%s has ended (%v): %s", p.name, p.err, tail)
	default:
		return nil
	}
}

// freePorts finds n unused ports.
func freePorts(n int) ([]string, error) {
	var ports []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // all together at the end, so that they differ
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			return nil, err
		}
		ports = append(ports, port)
	}
	return ports, nil
}
