package main

import (
	"context"
	"os"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "server" {
		lengthenTimerSlack()
	}
	os.Exit(run(context.Background(), app{
		name:   os.Args[0],
		stdin:  os.Stdin,
		stdout: os.Stdout,
		stderr: os.Stderr,
		getenv: os.Getenv,
		exit:   os.Exit,
	}, os.Args[1:]))
}

// run executes the command line and returns the exit code.
func run(ctx context.Context, a app, args []string) int {
	root := newRoot(&a)
	root.SetArgs(args)
	return a.printError(root.ExecuteContext(ctx))
}
