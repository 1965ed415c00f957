//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/client"
)

// The tests drive the binary as a person would. It is built once, and one cluster of `zamok dev`
// serves all tests that do not harm it; each uses locks of its own names.
var (
	binary    string
	sharedDev devCluster
)

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGHUP} {
		// as in the background of a script: what the tests start would ignore it, too
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	dir, err := os.MkdirTemp("", "zamok-command-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "zamok")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", binary,
		".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	defer sharedDev.end()
	return m.Run()
}

// devCluster is a `zamok dev` that runs.
type devCluster struct {
	once sync.Once
	cmd  *exec.Cmd
	port int
	out  lockedBuffer
}

// sharedCluster returns the shared cluster.
func sharedCluster(t *testing.T) *devCluster {
	t.Helper()
	sharedDev.once.Do(func() {
		sharedDev.port = freePorts(t)
		sharedDev.start(t)
	})
	require.NotNil(t, sharedDev.cmd, "the shared cluster did not start")
	return &sharedDev
}

// startCluster starts a cluster for one test.
func startCluster(t *testing.T, args ...string) *devCluster {
	t.Helper()
	c := &devCluster{port: freePorts(t)}
	c.start(t, args...)
	t.Cleanup(c.end)
	return c
}

func (c *devCluster) start(t *testing.T, args ...string) {
	t.Helper()
	c.cmd = zamokCommand(append([]string{"dev", "--port", strconv.Itoa(c.port)}, args...)...)
	c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.out
	require.NoError(t, c.cmd.Start())
	require.Eventually(t, func() bool { return strings.Contains(c.out.String(), "zamok is ready") },
		testTimeout, 5*time.Millisecond, "zamok dev is not ready")
}

func (c *devCluster) end() {
	if c.cmd != nil && c.cmd.ProcessState == nil {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	}
}

func (c *devCluster) endpoint() string { return "127.0.0.1:" + strconv.Itoa(c.port) }

// client is for what a test asks of the cluster behind the command's back. It waits for a cluster
// that a busy machine keeps from answering, and what it holds stays held.
func (c *devCluster) client(t *testing.T) *client.Client {
	t.Helper()
	cl, err := client.New(client.Config{Endpoints: []string{c.endpoint()}, TTL: 3 * testTimeout,
		RequestTimeout: testTimeout})
	require.NoError(t, err)
	t.Cleanup(func() { cl.Close() })
	return cl
}

// portAllocator keeps tests that run at the same time from each other's ports.
var portAllocator struct {
	sync.Mutex
	port int
}

// freePorts finds a port p such that those that `zamok dev --port p` would use are free. Other
// processes may look at the same time: so each begins elsewhere, below what the kernel gives to
// connections.
func freePorts(t *testing.T) int {
	t.Helper()
	portAllocator.Lock()
	defer portAllocator.Unlock()
	if portAllocator.port == 0 {
		portAllocator.port = 12000 + os.Getpid()%600*30
	}
	for range 500 {
		p := portAllocator.port
		portAllocator.port += 30
		if portAllocator.port > 31000 {
			portAllocator.port = 12000
		}
		if allFree(p) {
			return p
		}
	}
	t.Fatal("no free ports")
	return 0
}

func allFree(p int) bool {
	for i := range 23 {
		l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(p+i))
		if err != nil {
			return false
		}
		l.Close()
	}
	return true
}

// zamokCommand is the binary, in a session of its own: the terminal at which tests are run is not
// its.
func zamokCommand(args ...string) *exec.Cmd {
	cmd := exec.Command(binary, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Env = append(os.Environ(), "ZAMOK_ENDPOINTS=", "ZAMOK_OUTPUT=")
	cmd.WaitDelay = testTimeout
	return cmd
}

// withTestTimeout has a verb that asks something ask for longer than a person would: a busy machine
// may change its leader, and again. A test's own flags come later and so take precedence.
func withTestTimeout(args []string) []string {
	switch args[0] {
	case "ls", "show", "watch", "sessions", "check", "now", "members", "release", "renew", "expire":
		return append([]string{args[0], "--timeout", testTimeout.String()}, args[1:]...)
	}
	return args
}

// exitResult is how a command ended.
type exitResult struct {
	code           int
	stdout, stderr string
}

// runZamok runs the command to its end.
func runZamok(t *testing.T, c *devCluster, args ...string) exitResult {
	t.Helper()
	return startZamok(t, c, args...).wait(t)
}

// runUntilAvailable runs the command again as long as no node answers: a busy machine may change
// its leader, which takes all of a short wait.
func runUntilAvailable(t *testing.T, c *devCluster, args ...string) exitResult {
	t.Helper()
	r := runZamok(t, c, args...)
	for began := time.Now(); r.code == exitUnavailable && time.Since(began) < 2*testTimeout; {
		r = runZamok(t, c, args...)
	}
	return r
}

// process is a command that was started.
type process struct {
	*exec.Cmd
	stdout, stderr lockedBuffer
	done           chan struct{} // closed when it has ended
}

func startZamok(t *testing.T, c *devCluster, args ...string) *process {
	t.Helper()
	if c != nil {
		args = withTestTimeout(args)
	}
	r := &process{Cmd: zamokCommand(args...), done: make(chan struct{})}
	if c != nil {
		r.Env = append(r.Env, "ZAMOK_ENDPOINTS="+c.endpoint())
	}
	r.Stdout, r.Stderr = &r.stdout, &r.stderr
	r.start(t)
	return r
}

func (r *process) start(t *testing.T) {
	t.Helper()
	require.NoError(t, r.Start())
	go func() {
		defer close(r.done)
		_ = r.Wait()
	}()
	t.Cleanup(func() {
		_ = r.Process.Signal(syscall.SIGTERM) // so that nothing stays locked for the next one
		select {
		case <-r.done:
		case <-time.After(time.Second):
			_ = r.Process.Kill()
			<-r.done
		}
	})
}

func (r *process) wait(t *testing.T) exitResult {
	t.Helper()
	return r.waitFor(t, 2*testTimeout)
}

func (r *process) waitFor(t *testing.T, limit time.Duration) exitResult {
	t.Helper()
	select {
	case <-r.done:
	case <-time.After(limit):
		t.Fatalf("it still runs: %v\n%s%s", r.Args, r.stdout.String(), r.stderr.String())
	}
	return exitResult{exitCodeOf(r.ProcessState), r.stdout.String(), r.stderr.String()}
}

// exitCodeOf is what a shell would see.
func exitCodeOf(state *os.ProcessState) int {
	if status := state.Sys().(syscall.WaitStatus); status.Signaled() {
		return 128 + int(status.Signal())
	}
	return state.ExitCode()
}

// awaitOutput waits until it has written a text.
func (r *process) awaitOutput(t *testing.T, text string) {
	t.Helper()
	contains := func() bool { return strings.Contains(r.stdout.String()+r.stderr.String(), text) }
	if !assert.Eventually(t, contains, testTimeout, 5*time.Millisecond) {
		t.Fatalf("it did not say %q: %v\n%s%s", text, r.Args, r.stdout.String(), r.stderr.String())
	}
}

// lockedBuffer may be read while a process writes to it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

var _ io.Writer = (*lockedBuffer)(nil)

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// awaitCondition waits for something to be so, on the goroutine of the test: what it looks with may
// end that.
func awaitCondition(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); !holds(); <-tick.C {
		require.Less(t, time.Since(began), 2*testTimeout, "this did not come: %s", what)
	}
}

// awaitWaiters waits until so many wait for a lock.
func (c *devCluster) awaitWaiters(t *testing.T, name string, waiting int) {
	t.Helper()
	cl := c.client(t)
	require.Eventually(t, func() bool {
		detail, err := cl.Get(context.Background(), name, 0)
		return err == nil && len(detail.Queue) == waiting
	}, testTimeout, 10*time.Millisecond, "never %d waiting for %s", waiting, name)
}

// awaitFree waits until a lock has no holder.
func (c *devCluster) awaitFree(t *testing.T, name string) {
	t.Helper()
	cl := c.client(t)
	require.Eventually(t, func() bool {
		detail, err := cl.Get(context.Background(), name, 0)
		return err == nil && len(detail.Held) == 0 && len(detail.Queue) == 0
	}, testTimeout, 10*time.Millisecond, "%s was never free", name)
}

// running reports whether a process exists and has not ended.
func isRunning(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return false
	}
	stat, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return !bytes.Contains(stat, []byte(") Z "))
}

// takesTime leaves a test out of the quick half: it waits for spans of time, and no mutant names
// it.
func takesTime(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it waits for spans of time: left out with -short")
	}
}
