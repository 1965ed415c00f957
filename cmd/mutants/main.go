package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"time"
)

func main() {
	runPattern := flag.String("run", ".", "only mutants whose name matches, such as fsm/lifo")
	known := flag.Bool("known", false, "only mutants with a name, and their table for known.md")
	since := flag.String("since", "",
		"only mutants that are due after the landing in this `file`: touched ones, and a tenth "+
			"of the others")
	parallel := flag.Int("parallel", runtime.GOMAXPROCS(0)+1, "mutants at the same time")
	timeout := flag.Duration("timeout", time.Minute,
		"time limit for the tests of one mutant; a test that takes far longer than without the "+
			"mutant has failed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	if err := run(ctx, *runPattern, *known, *since, *parallel, *timeout); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, pattern string, known bool, since string, parallel int,
	timeout time.Duration) error {
	wanted, err := regexp.Compile(pattern)
	if err != nil {
		return err
	}
	root, err := filepath.Abs(".")
	if err != nil {
		return err
	}
	mutants, err := findMutants(root, wanted)
	if err != nil {
		return err
	}
	if known {
		mutants = slices.DeleteFunc(mutants, func(m mutant) bool { return m.shortName == "" })
	}
	if since != "" {
		l, err := readLanding(since)
		if err != nil {
			return err
		}
		due, summary, err := l.due(root, mutants)
		if err != nil { // a clone without its history, for example
			due, summary = mutants,
				fmt.Sprintf("all mutants, because the changes are unknown: %v", err)
		}
		mutants = due
		fmt.Println(summary)
	}
	s := suite{root: root, parallel: parallel, timeout: timeout, out: os.Stdout, table: known}
	return s.run(ctx, mutants)
}
