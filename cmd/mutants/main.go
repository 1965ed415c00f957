package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"time"
)

func main() {
	runPattern := flag.String("run", ".", "only mutants whose name matches, such as fsm/lifo")
	known := flag.Bool("known", false, "only mutants that are known by a name, and their table for docs/testing.md")
	parallel := flag.Int("parallel", 2, "mutants at the same time")
	timeout := flag.Duration("timeout", time.Minute, "time for the tests of one mutant; one that never ends counts as failed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	if err := run(ctx, *runPattern, *known, *parallel, *timeout); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, pattern string, known bool, parallel int, timeout time.Duration) error {
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
	s := suite{root: root, parallel: parallel, timeout: timeout, out: os.Stdout, table: known}
	return s.run(ctx, mutants)
}
