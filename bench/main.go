package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"zamok/bench/load"
	"zamok/bench/measure"
	"zamok/bench/peer"
	"zamok/bench/report"
	"zamok/bench/server"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := runCommand(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func runCommand(ctx context.Context, args []string) error {
	verb, rest := "", []string(nil)
	if len(args) > 0 {
		verb, rest = args[0], args[1:]
	}
	switch {
	case verb == "run":
		return commandRun(ctx, rest)
	case verb == "plan":
		return commandPlan(rest)
	case verb == "report":
		return commandReport(rest)
	case verb == "hold" && len(rest) == 1:
		return load.Hold(ctx, rest[0], os.Stdin, os.Stdout)
	case verb == "echo" && len(rest) == 1:
		return peer.Echo(ctx, rest[0])
	}
	return errors.New("usage: bench run|plan|report [flags]; see bench/doc.go")
}

// parseFlags are those of run and plan. Each has its variable, so that make can be told.
func parseFlags(name string, args []string) (*config, string, string, error) {
	set := flag.NewFlagSet(name, flag.ContinueOnError)
	env := func(name, fallback string) string {
		if v := os.Getenv(name); v != "" {
			return v
		}
		return fallback
	}
	systems := set.String("systems", env("BENCH_SYSTEMS", ""), "names, separated by blanks; empty = all")
	workloads := set.String("workloads", env("BENCH_WORKLOADS", ""), "names, separated by blanks; empty = all")
	clients := set.String("clients", env("BENCH_CLIENTS", "1 16 64 256 1024"), "numbers of clients for own and one")
	rounds := set.String("rounds", env("BENCH_ROUNDS", "3"), "rounds")
	seconds := set.String("seconds", env("BENCH_SECONDS", "1"), "how long a rate is measured")
	warm := set.String("warm", env("BENCH_WARM", "2"), "seconds of warm-up of each system in each round")
	programs := set.String("programs", "", "the folder with the built zamok and etcd")
	dir := set.String("dir", env("BENCH_DIR", ""), "where the data goes for a while; empty = the system's temporary folder")
	outPath := set.String("out", "", "the file of results; empty = standard output")
	if err := set.Parse(args); err != nil {
		return nil, "", "", err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, "", "", err
	}
	c := &config{workloads: strings.Fields(*workloads), progress: os.Stderr, programs: server.Programs{
		Zamok: filepath.Join(*programs, "zamok"), Etcd: filepath.Join(*programs, "etcd"), Self: self}}
	selected := strings.Fields(*systems)
	for _, s := range peer.Systems() {
		if len(selected) == 0 || slices.Contains(selected, s.Name) {
			c.systems = append(c.systems, s)
		}
	}
	for _, n := range strings.Fields(*clients) {
		number, err := strconv.Atoi(n)
		if err != nil || number < 1 {
			return nil, "", "", fmt.Errorf("%q is no number of clients", n)
		}
		c.clients = append(c.clients, number)
	}
	c.rounds, err = strconv.Atoi(*rounds)
	window, err2 := strconv.ParseFloat(*seconds, 64)
	warming, err3 := strconv.ParseFloat(*warm, 64)
	if err := errors.Join(err, err2, err3); err != nil {
		return nil, "", "", err
	}
	c.window, c.warm = time.Duration(window*float64(time.Second)), time.Duration(warming*float64(time.Second))
	slices.Sort(c.clients)
	return c, *dir, *outPath, nil
}

func commandRun(ctx context.Context, args []string) (err error) {
	c, parent, out, err := parseFlags("run", args)
	if err != nil {
		return err
	}
	if err := raiseFileLimit(); err != nil {
		return err
	}
	c.systems = slices.DeleteFunc(c.systems, func(s peer.System) bool {
		return s.Name == "zamok-wal" && !supportsLogStore(ctx, c.programs.Zamok)
	})
	if c.dir, err = makeDataDir(parent); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(c.dir)) }()
	file := os.Stdout
	if out != "" {
		if file, err = os.Create(out); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, file.Close()) }()
	}
	c.results = file
	run, err := describeRun(ctx, c)
	if err != nil {
		return err
	}
	if err := measure.WriteRun(file, run); err != nil {
		return err
	}
	return c.runAll(ctx)
}

// supportsLogStore says whether this zamok can keep its log in another store.
func supportsLogStore(ctx context.Context, program string) bool {
	text, _ := exec.CommandContext(ctx, program, "server", "--help").CombinedOutput()
	return strings.Contains(string(text), "--log-store")
}

// raiseFileLimit lets this process and its children have as many connections as may be. Go raises the limit
// for itself only; set by hand it is inherited.
func raiseFileLimit() error {
	const files = 65536
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Cur = min(limit.Max, files)
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
}

func commandPlan(args []string) error {
	c, _, _, err := parseFlags("plan", args)
	if err != nil {
		return err
	}
	for _, s := range c.systems {
		fmt.Printf("%-10s", s.Name)
		for _, step := range planFor(s, c.clients) {
			if len(c.workloads) == 0 || slices.Contains(c.workloads, step.workload) {
				fmt.Printf(" %s,", step)
			}
		}
		fmt.Println()
	}
	return nil
}

func commandReport(args []string) error {
	set := flag.NewFlagSet("report", flag.ContinueOnError)
	docs := set.String("docs", "", "the folder for benchmarks.md and its plots")
	if err := set.Parse(args); err != nil {
		return err
	}
	if set.NArg() != 1 || *docs == "" {
		return errors.New("usage: bench report -docs FOLDER RESULTS")
	}
	file, err := os.Open(set.Arg(0))
	if err != nil {
		return err
	}
	defer file.Close()
	results, err := measure.Read(file)
	if err != nil {
		return fmt.Errorf("%s: %w", set.Arg(0), err)
	}
	var systems []report.System
	for _, s := range peer.Systems() {
		systems = append(systems, report.System{Name: s.Name, Title: s.Title, Durability: s.Durability, Client: s.Client, Notes: s.Notes, TransportOnly: s.TransportOnly})
	}
	return report.Write(*docs, filepath.Base(set.Arg(0)), systems, results)
}
