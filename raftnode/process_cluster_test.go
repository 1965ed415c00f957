package raftnode

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// cluster is some processes, as the test that starts and kills them sees them.
type cluster struct {
	t        testing.TB
	parts    []*part
	ledger   *ledger
	logs     string // folder
	profiles string // folder for CPU profiles of those who are closed; "" = none
}

// part is one node of a cluster: its order, and the process that carries it out, if one does.
type part struct {
	order
	*process
}

// answerWait is how long a test waits for a process to answer, or to do what it must, looking each
// lookEvery. It is long for a machine that is busy with other tests, and no test waits that long
// otherwise.
const (
	answerWait = 40 * time.Second
	lookEvery  = 10 * time.Millisecond
)

// newCluster gives three nodes their places.
func newCluster(t testing.TB, template order) *cluster {
	c := &cluster{t: t, ledger: newLedger(), logs: t.TempDir()}
	var items []string
	for i := range 3 {
		o := template
		o.ID, o.Address, o.Dir = fmt.Sprintf("n%d", i+1), freeAddress(t), t.TempDir()
		items = append(items, o.ID+"="+o.Address)
		c.parts = append(c.parts, &part{order: o})
	}
	for _, p := range c.parts {
		p.Cluster = strings.Join(items, ",")
	}
	t.Cleanup(func() {
		c.kill(c.parts...)
		if t.Failed() {
			c.showLogs()
		}
	})
	return c
}

// The ports of processes are below those that the kernel hands out to callers: a node that calls a
// dead one could otherwise be given the dead one's port, and reach itself. They are above those of
// the tests of cmd/zamok, which may run at the same time, and no two clusters of this process have
// one in common: a node that is down does not defend its port.
const firstPort, ports = 31_100, 1600

var nextPort atomic.Uint32

func init() { nextPort.Store(rand.Uint32N(ports)) }

// freeAddress is one without a listener.
func freeAddress(t testing.TB) string {
	for {
		address := fmt.Sprintf("127.0.0.1:%d", firstPort+nextPort.Add(1)%ports)
		if l, err := net.Listen("tcp", address); err == nil {
			require.NoError(t, l.Close())
			return address
		}
	}
}

// process is a running process.
type process struct {
	cmd     *exec.Cmd
	tasks   io.WriteCloser
	answers chan said     // closed when all that it said was read
	ended   chan struct{} // closed when it has ended, after answers
	fatal   string        // why it ended itself; read it after ended
	exit    error         // likewise
}

// start starts the processes of parts, and waits until each has opened its node.
func (c *cluster) start(parts ...*part) {
	for _, p := range parts {
		c.spawn(p)
	}
	for _, p := range parts {
		c.answer(p, "open")
	}
}

// spawn starts a process.
func (c *cluster) spawn(p *part) {
	text, err := json.Marshal(p.order)
	require.NoError(c.t, err)
	run, out, err := os.Pipe()
	require.NoError(c.t, err)
	log, err := os.OpenFile(filepath.Join(c.logs, p.ID), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(c.t, err)
	defer log.Close()
	cmd := exec.Command(os.Args[0], "-test.run=^TestNodeProcess$", "-test.timeout=30m")
	if c.profiles != "" {
		cmd.Args = append(cmd.Args,
			"-test.cpuprofile="+filepath.Join(c.profiles, fmt.Sprintf("%d-%s", p.Floor, p.ID)))
	}
	cmd.Env = append(os.Environ(), orderVariable+"="+string(text))
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{out}
	tasks, err := cmd.StdinPipe()
	require.NoError(c.t, err)
	require.NoError(c.t, cmd.Start())
	require.NoError(c.t, out.Close())
	p.process = &process{cmd: cmd, tasks: tasks, answers: make(chan said, 16),
		ended: make(chan struct{})}
	go p.process.hear(run, p.ID, c.ledger)
}

// hear reads a process's output until it ends; the answers of its load go into the ledger.
func (p *process) hear(run *os.File, id string, l *ledger) {
	defer close(p.ended)
	lines := bufio.NewReaderSize(run, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		var s said
		if err == nil {
			err = json.Unmarshal(line, &s)
		}
		if err != nil { // the end, or the torn last line of a process that was killed
			break
		}
		switch {
		case s.Of == "fatal":
			p.fatal = s.Error
		case !l.enter(id, s):
			p.answers <- s
		}
	}
	close(p.answers)
	_ = run.Close()
	p.exit = p.cmd.Wait()
}

// kill ends processes with SIGKILL, one right after the other, and takes in what they said.
func (c *cluster) kill(parts ...*part) {
	for _, p := range parts {
		if p.process != nil {
			_ = p.cmd.Process.Kill() // it may have ended itself
		}
	}
	for _, p := range parts {
		if p.process != nil {
			<-p.ended
			_ = p.tasks.Close()
			p.process = nil
		}
	}
}

// do has a process do something, and returns its answer.
func (c *cluster) do(p *part, a task) said {
	c.order(p, a)
	return c.answer(p, a.Do)
}

// order has a process do something, without waiting for it.
func (c *cluster) order(p *part, a task) {
	line, err := json.Marshal(a)
	require.NoError(c.t, err)
	_, err = p.tasks.Write(append(line, '\n'))
	require.NoError(c.t, err, "%s was told to %s", p.ID, a.Do)
}

func (c *cluster) answer(p *part, of string) said {
	limit := time.NewTimer(answerWait)
	defer limit.Stop()
	select {
	case s, ok := <-p.answers:
		if !ok {
			<-p.ended
			require.Fail(c.t, "a process ended", "%s: %v, fatal: %s", p.ID, p.exit, p.fatal)
		}
		require.Equal(c.t, of, s.Of, "the answer of %s: %s", p.ID, s.Error)
		return s
	case <-limit.C:
		require.Fail(c.t, "no answer", "%s, told to %s", p.ID, of)
	}
	return said{}
}

// leader waits until one of parts has an epoch, and returns it.
func (c *cluster) leader(parts ...*part) (leads *part) {
	until(c.t, "an epoch opens", func() bool {
		for _, p := range parts {
			if leads == nil && c.do(p, task{Do: "report"}).State.Leads {
				leads = p
			}
		}
		return leads != nil
	})
	return leads
}

// others are all parts but one.
func (c *cluster) others(than *part) (others []*part) {
	for _, p := range c.parts {
		if p != than {
			others = append(others, p)
		}
	}
	return others
}

// agree waits until all parts have the same digest at one index that holds everything acknowledged
// before, and returns how they stand. Who is sent a snapshot of later than the fence never stands
// at it: then there is another fence.
func (c *cluster) agree(parts ...*part) (reports map[string]*standing) {
	c.t.Helper()
	until(c.t, "all stand at a fence", func() (all bool) {
		reports, all = c.standAt(c.fence(parts...), parts...)
		return all
	})
	digests := make(map[uint64]string)
	for _, p := range parts {
		require.Empty(c.t, reports[p.ID].Check, p.ID)
		digests[reports[p.ID].Digest] += " " + p.ID
	}
	require.Len(c.t, digests, 1)
	return reports
}

// fence makes a read barrier at the leader, and returns the index of that.
func (c *cluster) fence(parts ...*part) (index uint64) {
	c.t.Helper()
	until(c.t, "a fence", func() bool {
		fenced := c.do(c.leader(parts...), task{Do: "fence"})
		index = fenced.Token
		return fenced.Error == ""
	})
	return index
}

// standAt waits until all parts are at an index or after it, and returns how they stood at it;
// false: one did not stop there.
func (c *cluster) standAt(index uint64, parts ...*part) (reports map[string]*standing, all bool) {
	c.t.Helper()
	reports, all = make(map[string]*standing), true
	for _, p := range parts {
		until(c.t, p.ID+" comes to the fence", func() bool {
			reports[p.ID] = c.do(p, task{Do: "report", Index: index}).State
			return reports[p.ID].Index >= index
		})
		all = all && reports[p.ID].Digest != 0
	}
	return reports, all
}

// until waits for something to be so, on the goroutine of the test: what it looks with may end
// that.
func until(t testing.TB, what string, so func() bool) {
	t.Helper()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for began := time.Now(); !so(); <-tick.C {
		require.Less(t, time.Since(began), answerWait, "this did not come: %s", what)
	}
}

// showLogs prints the end of what each process logged.
func (c *cluster) showLogs() {
	for _, p := range c.parts {
		c.t.Logf("the log of %s ends with\n%s", p.ID, lastLines(c.logOf(p), 6000))
	}
}

func (c *cluster) logOf(p *part) string {
	text, err := os.ReadFile(filepath.Join(c.logs, p.ID))
	require.NoError(c.t, err)
	return string(text)
}

func lastLines(text string, bytes int) string { return text[max(0, len(text)-bytes):] }

// noAlarms looks for what no log may hold.
func (c *cluster) noAlarms() {
	for _, p := range c.parts {
		for _, word := range []string{"ALARM", "panic", "can't be decoded"} {
			require.NotContains(c.t, c.logOf(p), word, "the log of %s", p.ID)
		}
	}
}
