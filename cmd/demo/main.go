package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// wholeStory is far more than the story takes.
const wholeStory = 2 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, wholeStory)
	err := play(ctx, os.Args[1:])
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func play(ctx context.Context, args []string) error {
	switch {
	case len(args) == 5 && args[0] == "machine":
		ttl, err := time.ParseDuration(args[4])
		if err != nil {
			return err
		}
		count, err := counting()
		if err != nil {
			return err
		}
		m := machine{name: args[1], bank: args[2], endpoints: args[3], ttl: ttl, counting: count, out: os.Stdout}
		return m.draw(ctx, price)
	case len(args) == 1:
		return tell(ctx, args[0])
	}
	return fmt.Errorf("usage: demo PATH-OF-ZAMOK")
}
