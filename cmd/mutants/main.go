package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"time"
)

func main() {
	pick := flag.String("run", ".", "only mutants whose name matches, such as fsm/lifo")
	parallel := flag.Int("parallel", 2, "mutants at the same time")
	timeout := flag.Duration("timeout", time.Minute, "time for the tests of one mutant; one that never ends counts as failed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	if err := run(ctx, *pick, *parallel, *timeout); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, pick string, parallel int, timeout time.Duration) error {
	wanted, err := regexp.Compile(pick)
	if err != nil {
		return err
	}
	root, err := filepath.Abs(".")
	if err != nil {
		return err
	}
	mutants, err := find(root, wanted)
	if err != nil {
		return err
	}
	s := suite{root: root, parallel: parallel, timeout: timeout, out: os.Stdout}
	return s.run(ctx, mutants)
}
