package overload

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"zamok/bench/server"
	"zamok/client"
	"zamok/cmd/zamok/loadgen"
)

const (
	holders      = 50
	answerMax    = 250 * time.Millisecond // a bound of zamok_answer_seconds
	readyMessage = "ready"
	atOncePeak   = 16 // concurrent cycles of each session, to measure the capacity
	sampleEvery  = 250 * time.Millisecond
	recoveryTime = 2 * time.Second // between two loads
)

// Config is what is measured: each multiple of the capacity in each round, for so long.
type Config struct {
	Programs server.Programs
	Dir      string
	Times    []float64
	Rounds   int
	Window   time.Duration
}

// row is one load.
type row struct {
	load              string
	due, sent, useful float64 // cycles a second
	// part of the commands at leaders that were answered within answerMax
	answered           float64
	got                clientsResult
	memory             float64 // bytes of all nodes, the maximum
	elections, expired float64
	timeout            float64 // the election timeout afterwards, in seconds
	lost               int64
	longest            time.Duration // a lock and unlock of another client
}

// Run measures and writes a table.
func Run(ctx context.Context, c Config, out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table,
		"load\tdue/s\tsent/s\tuseful/s\tof peak\twithin 250 "+
			"ms\trefused\tunsent\tresent\tunanswered\tsessions "+
			"lost\tmemory\telections\ttimeout\texpired\tothers lost\tslowest\t")
	var clients strings.Builder
	for round := range c.Rounds {
		dir, err := os.MkdirTemp(c.Dir, "overload-")
		if err != nil {
			return err
		}
		rows, err := c.round(ctx, dir)
		if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
			return fmt.Errorf("round %d: %w", round+1, err)
		}
		for _, r := range rows {
			fmt.Fprintf(table,
				"%s\t%.0f\t%.0f\t%.0f\t%.2f\t%.3f %%\t%d\t%d\t%d\t%d\t%d\t%.0f MB\t%.0f\t%.0f "+
					"ms\t%.0f\t%d\t%v\t\n", r.load, r.due, r.sent, r.useful,
				r.useful/rows[0].useful, 100*r.answered, r.got.Refused, r.got.Unsent, r.got.Resent,
				r.got.Unanswered, r.got.Lost, r.memory/1e6,
				r.elections, 1000*r.timeout, r.expired, r.lost, r.longest.Round(time.Millisecond))
			fmt.Fprintf(&clients,
				"%s: from sending to answer in the client: median %v; of resent commands median "+
					"%v, longest %v\n", r.load,
				r.got.Median.Round(time.Millisecond), r.got.ResentMedian.Round(time.Millisecond),
				r.got.ResentLongest.Round(time.Millisecond))
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(out, clients.String())
	return err
}

func (c Config) round(ctx context.Context, dir string) (rows []row, err error) {
	cluster, err := server.Start("zamok", 0, dir, c.Programs)
	if err != nil {
		return nil, err
	}
	defer cluster.Stop()
	if _, err := cluster.Leader(ctx); err != nil {
		return nil, err
	}
	others, err := openOthers(ctx, cluster.Endpoints)
	if err != nil {
		return nil, err
	}
	defer others.close()
	for _, times := range append([]float64{0}, c.Times...) {
		leader, err := cluster.Leader(ctx)
		if err != nil {
			return nil, err
		}
		first := slices.Concat(cluster.Endpoints[leader:], cluster.Endpoints[:leader])
		spec := clientsSpec{Endpoints: first, AtOnce: atOncePeak, Window: c.Window}
		r := row{load: "peak"}
		if times > 0 {
			spec.Rate = times * rows[0].useful
			r.load = strconv.FormatFloat(times, 'g', -1, 64) + "×"
		}
		if err := r.measure(ctx, &spec, cluster, others); err != nil {
			return nil, fmt.Errorf("%s: %w", r.load, err)
		}
		rows = append(rows, r)
		loadgen.Sleep(ctx, recoveryTime)
	}
	return rows, nil
}

// measure runs the clients once.
func (r *row) measure(ctx context.Context, spec *clientsSpec, cluster *server.Cluster,
	others *others) error {
	clients, err := startClients(ctx, spec)
	if err != nil {
		return err
	}
	defer clients.kill()
	before, err := readCounts(ctx, cluster)
	if err != nil {
		return err
	}
	others.longest.Store(0)
	sampling, stop := context.WithCancel(ctx)
	var sampler sync.WaitGroup
	sampler.Go(func() {
		for ; sampling.Err() == nil; loadgen.Sleep(sampling, sampleEvery) {
			if u, err := cluster.Usage(); err == nil {
				r.memory = max(r.memory, u.Memory)
			}
		}
	})
	got, err := clients.run()
	stop()
	sampler.Wait()
	if err != nil {
		return err
	}
	after, err := readCounts(ctx, cluster)
	if err != nil {
		return err
	}
	r.due, r.sent, r.useful = float64(got.Due)/got.Seconds, float64(got.Sent)/got.Seconds,
		float64(got.Cycles)/got.Seconds
	r.got, r.answered = got, (after.quick-before.quick)/(after.answers-before.answers)
	r.elections, r.expired, r.timeout = after.elections-before.elections,
		after.expired-before.expired, after.timeout
	r.lost, r.longest = others.lost.Load(), time.Duration(others.longest.Load())
	return nil
}

// counts are sums over all nodes, because the leader may have changed. The election timeout is the
// longest.
type counts struct{ answers, quick, elections, expired, timeout float64 }

func readCounts(ctx context.Context, cluster *server.Cluster) (n counts, err error) {
	for node := range cluster.Endpoints {
		read := func(name string) float64 {
			value, failed := cluster.Metric(ctx, node, name)
			err = cmp.Or(err, failed)
			return value
		}
		for _, outcome := range []string{"done", "not_done", "unknown"} {
			n.answers += read(`zamok_answer_seconds_count{outcome="` + outcome + `"}`)
			n.quick += read(fmt.Sprintf(`zamok_answer_seconds_bucket{outcome=%q,le="%g"}`, outcome,
				answerMax.Seconds()))
		}
		for _, reason := range []string{"expired", "disconnected"} {
			value, failed := cluster.Metric(ctx, node,
				`zamok_sessions_expired_total{reason="`+reason+`"}`)
			if failed == nil { // else no session has
				n.expired += value
			}
		}
		n.timeout = max(n.timeout, read("zamok_raft_election_timeout_seconds"))
	}
	elections, known := cluster.LeaderChanges(ctx)
	if n.elections = elections; !known {
		err = cmp.Or(err, errors.New("a node does not count its leader changes"))
	}
	return n, err
}

// clients is the process of the clients.
type clients struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// startClients starts the process on half of the processors, and waits until its sessions are open.
func startClients(ctx context.Context, spec *clientsSpec) (*clients, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &clients{cmd: exec.CommandContext(ctx, self, "overload-clients", string(text))}
	half := runtime.NumCPU() / 2
	if half == 0 {
		return nil, errors.New(
			"the machine has one processor: the clients need a processor of their own")
	}
	c.cmd.Env = append(os.Environ(), fmt.Sprint("GOMAXPROCS=", half))
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewReader(out)
	if err := startOn(half, c.cmd); err != nil {
		return nil, err
	}
	if line, err := c.out.ReadString('\n'); strings.TrimSpace(line) != readyMessage {
		c.kill()
		return nil, fmt.Errorf("the clients printed %q (%v)", line, err)
	}
	return c, nil
}

// startOn starts a process on the first processors only. It inherits that from the thread that
// starts it.
func startOn(processors int, cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, some unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return err
	}
	for cpu := 0; some.Count() < processors; cpu++ {
		if all.IsSet(cpu) {
			some.Set(cpu)
		}
	}
	if err := unix.SchedSetaffinity(0, &some); err != nil {
		return err
	}
	return errors.Join(cmd.Start(), unix.SchedSetaffinity(0, &all))
}

func (c *clients) run() (r clientsResult, err error) {
	if _, err := io.WriteString(c.in, "\n"); err != nil {
		return r, err
	}
	if err := json.NewDecoder(c.out).Decode(&r); err != nil {
		return r, fmt.Errorf("the clients ended without a result: %w",
			errors.Join(err, c.cmd.Wait()))
	}
	return r, c.cmd.Wait()
}

func (c *clients) kill() {
	_ = c.cmd.Process.Kill() // it may have ended by itself
	_ = c.cmd.Wait()
}

// others are the clients that do not overload the cluster.
type others struct {
	clients []*client.Client
	stop    func()
	running sync.WaitGroup
	lost    atomic.Int64
	longest atomic.Int64 // nanoseconds of a lock and unlock
}

func openOthers(ctx context.Context, endpoints []string) (*others, error) {
	ctx, cancel := context.WithCancel(ctx)
	o := &others{stop: cancel}
	for i := range holders + 1 {
		c, err := client.New(client.Config{Endpoints: endpoints,
			Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			return nil, errors.Join(err, o.close())
		}
		o.clients = append(o.clients, c)
		if i == holders {
			o.running.Go(func() { o.cycle(ctx, c) })
			continue
		}
		lock, err := c.Lock(ctx, "held-"+rand.Text())
		if err != nil {
			return nil, errors.Join(err, o.close())
		}
		o.running.Go(func() {
			select {
			case <-lock.Lost():
				o.lost.Add(1)
			case <-ctx.Done():
			}
		})
	}
	return o, nil
}

// cycle locks and unlocks one lock after the other.
func (o *others) cycle(ctx context.Context, c *client.Client) {
	for ctx.Err() == nil {
		began := time.Now()
		err := c.Do(ctx, "cycle-"+rand.Text(),
			func(context.Context, *client.Lock) error { return nil })
		if took := int64(time.Since(began)); ctx.Err() == nil && took > o.longest.Load() {
			o.longest.Store(took)
		}
		if errors.Is(err, client.ErrLost) {
			o.lost.Add(1)
		}
	}
}

func (o *others) close() error {
	o.stop()
	o.running.Wait()
	var failed []error
	for _, c := range o.clients {
		failed = append(failed, c.Close())
	}
	return errors.Join(failed...)
}

// ParseTimes reads multiples, separated by blanks.
func ParseTimes(text string) (times []float64, err error) {
	for _, field := range strings.Fields(text) {
		n, err := strconv.ParseFloat(field, 64)
		if err != nil || n <= 0 {
			return nil, fmt.Errorf("-times: %q is not a multiple of the capacity, such as 3", field)
		}
		times = append(times, n)
	}
	return slices.Clip(times), nil
}
