package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"zamok/api/visible"
	"zamok/client"
)

// requestFlags are the flags of the commands that send a request to a cluster and print the answer.
type requestFlags struct {
	connectionFlags
	timeout time.Duration
}

// changeTimeoutDefault is longer, for changes that wait for a node to catch up or for an election.
const (
	requestTimeoutDefault = client.DefaultRequestTimeout
	changeTimeoutDefault  = time.Minute
)

func (q *requestFlags) register(a *app, cmd *cobra.Command, timeout time.Duration) {
	q.connectionFlags.register(a, cmd)
	cmd.Flags().DurationVar(&q.timeout, "timeout", timeout, "maximum time for the command")
}

var errTimeout = errors.New("timed out (--timeout)")

// run calls f with a client. A signal ends its context.
func (q *requestFlags) run(cmd *cobra.Command,
	f func(context.Context, *client.Client) error) error {
	if q.timeout <= 0 {
		return &usageError{cmd.CommandPath(),
			fmt.Errorf("--timeout is %v: it must be above 0", q.timeout)}
	}
	cfg, err := q.config()
	if err != nil {
		return err
	}
	cfg.RequestTimeout = q.timeout
	c, err := client.New(cfg)
	if err != nil {
		return err
	}
	defer c.Close() // there is no session whose end could fail
	ctx, stop := signalContext(cmd.Context())
	defer stop()
	return signalOr(ctx, f(ctx, c))
}

// operatorCommands are the commands that inspect and operate a cluster.
func operatorCommands() []func(*app) *cobra.Command {
	return []func(*app) *cobra.Command{
		newLs, newShow, newWatch, newSessions, newCheck, newNow, newBench,
		newExpire, newMembers, newJoin, newRemove, newTransfer, newSettings, newBackup, newRestore,
	}
}

// parsePositive reads what a person copied out of a table: a token, a session, an index.
func parsePositive(field, text string) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%s is %q: it must be a whole number from 1", field, text)
	}
	return n, nil
}

// shellWord is shellQuote for a file's name, which seldom needs the quotes.
func shellWord(path string) string {
	plain := func(r rune) bool {
		return strings.ContainsRune("/._-", r) || unicode.IsLetter(r) || unicode.IsDigit(r)
	}
	if strings.TrimFunc(path, plain) == "" {
		return path
	}
	return shellQuote(path)
}

// shellQuote is a text as one word of a shell's command line; with characters that can't be seen,
// one of bash or zsh.
func shellQuote(text string) string {
	if visible.Line(text) != text {
		return "$'" + visible.Line(strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(text)) + "'"
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
