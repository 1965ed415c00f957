package main

import (
	"cmp"
	"context"
	"fmt"
	"net/rpc"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// runTimeout is far more than all acts take.
const runTimeout = 2 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	err := run(ctx, os.Args[1:])
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 5 && args[0] == "machine":
		ttl, err := time.ParseDuration(args[4])
		if err != nil {
			return err
		}
		pause, err := time.ParseDuration(cmp.Or(os.Getenv(pauseVariable), "1s"))
		if err != nil {
			return fmt.Errorf("%s: %w", pauseVariable, err)
		}
		bank, err := rpc.Dial("tcp", args[2])
		if err != nil {
			return err
		}
		m := cashMachine{name: args[1], bank: bank, endpoints: args[3], ttl: ttl, pause: pause}
		return m.withdraw(ctx, withdrawal)
	case len(args) == 1:
		return runScenarios(ctx, args[0])
	}
	return fmt.Errorf("usage: demo PATH-OF-ZAMOK")
}
