package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"zamok/bench/driver"
	"zamok/bench/load"
	"zamok/bench/measure"
	"zamok/bench/overload"
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
	switch {
	case len(args) > 0 && args[0] == "run":
		return commandRun(ctx, args[1:])
	case len(args) > 0 && args[0] == "report":
		return commandReport(args[1:])
	case len(args) > 0 && args[0] == "overload":
		return commandOverload(ctx, args[1:])
	case len(args) == 2 && args[0] == "overload-clients":
		return overload.RunClients(ctx, args[1], os.Stdin, os.Stdout)
	case len(args) == 2 && args[0] == "hold":
		return load.Hold(ctx, args[1], os.Stdin, os.Stdout)
	case len(args) == 2 && args[0] == "echo":
		return driver.Echo(ctx, args[1])
	}
	return errors.New("usage: bench run|report|overload [flags]; see bench/doc.go")
}

func commandRun(ctx context.Context, args []string) (err error) {
	c := &config{progress: os.Stderr}
	set := flag.NewFlagSet("run", flag.ContinueOnError)
	systems := set.String("systems", "", "names, separated by blanks; empty = all")
	workloads := set.String("workloads", "", "names, separated by blanks; empty = all")
	clients := set.String("clients", "1 16 64 256 1024", "numbers of clients for own and one")
	set.IntVar(&c.rounds, "rounds", 3, "rounds")
	set.DurationVar(&c.window, "window", 1500*time.Millisecond, "measured time of a rate")
	set.DurationVar(&c.warm, "warm", 2*time.Second, "warm-up of each system in each round")
	programs := set.String("programs", "", "folder with the built zamok and etcd")
	parent := set.String("dir", "", "folder for data; empty = the system's temporary folder")
	out := set.String("out", "", "file for the results")
	if err := set.Parse(args); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c.workloads = strings.Fields(*workloads)
	c.programs = server.Programs{Zamok: filepath.Join(*programs, "zamok"),
		Etcd: filepath.Join(*programs, "etcd"), Self: self}
	selected := strings.Fields(*systems)
	c.systems = slices.DeleteFunc(driver.Systems(), func(s driver.System) bool {
		return len(selected) > 0 && !slices.Contains(selected, s.Name)
	})
	for _, text := range strings.Fields(*clients) {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return fmt.Errorf("-clients: %q is not a number of clients", text)
		}
		c.clients = append(c.clients, n)
	}
	slices.Sort(c.clients)
	if err := raiseFileLimit(); err != nil {
		return err
	}
	if c.dir, err = filepath.Abs(cmp.Or(*parent, os.TempDir())); err != nil {
		return err
	}
	file, err := os.Create(*out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	c.results = json.NewEncoder(file)
	run, err := describeRun(ctx, c)
	if err != nil {
		return err
	}
	if err := c.results.Encode(measure.Line{Run: &run}); err != nil {
		return err
	}
	return c.runAll(ctx)
}

func commandOverload(ctx context.Context, args []string) (err error) {
	c := overload.Config{}
	set := flag.NewFlagSet("overload", flag.ContinueOnError)
	zamok := set.String("zamok", "", "the built command")
	times := set.String("times", "1 3 10",
		"loads as multiples of the capacity, separated by blanks")
	set.StringVar(&c.Dir, "dir", "", "folder for data; empty = the system's temporary folder")
	set.IntVar(&c.Rounds, "rounds", 1, "rounds")
	set.DurationVar(&c.Window, "window", 10*time.Second, "measured time of a load")
	if err := set.Parse(args); err != nil {
		return err
	}
	c.Programs.Zamok = *zamok
	if c.Times, err = overload.ParseTimes(*times); err != nil {
		return err
	}
	return overload.Run(ctx, c, os.Stdout)
}

// raiseFileLimit lets this process and its children open as many connections as allowed. Go raises
// the limit only for itself; children inherit one that is set explicitly.
func raiseFileLimit() error {
	const files = 65536
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Cur = min(limit.Max, files)
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
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
	for _, s := range slices.DeleteFunc(driver.Systems(),
		func(s driver.System) bool { return s.Nodes > 0 }) {
		systems = append(systems, s.System)
	}
	return report.Write(*docs, filepath.Base(set.Arg(0)), systems, results)
}
