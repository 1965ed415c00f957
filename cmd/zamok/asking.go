package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"zamok/client"
)

// asking is what the verbs have in common that ask a cluster for something and print the answer.
type asking struct {
	connection
	timeout time.Duration
}

// askPatience bounds a question; changePatience what waits for a node to catch up, or for an election.
const (
	askPatience    = client.DefaultRequestTimeout
	changePatience = time.Minute
)

func (q *asking) flags(a *app, cmd *cobra.Command, patience time.Duration) {
	q.connection.flags(a, cmd)
	cmd.Flags().DurationVar(&q.timeout, "timeout", patience, "time limit of the whole operation")
}

var errTimeout = errors.New("the time (--timeout) was over")

// run asks f's question with a client, until a signal ends it.
func (q *asking) run(cmd *cobra.Command, f func(context.Context, *client.Client) error) error {
	if q.timeout <= 0 {
		return &usageError{cmd.CommandPath(), fmt.Errorf("--timeout is %v: it must be above 0", q.timeout)}
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
	ctx, stop := untilSignal(cmd.Context())
	defer stop()
	return cause(ctx, f(ctx, c))
}

// operatorVerbs are the verbs that look at a cluster and run it.
func operatorVerbs() []func(*app) *cobra.Command {
	return []func(*app) *cobra.Command{
		newLs, newShow, newWatch, newSessions, newCheck, newNow, newBench,
		newRelease, newExpire, newMembers, newJoin, newRemove, newTransfer, newBackup, newRestore,
	}
}

// parseNumber reads what a person copied out of a table: a token, a session, an index.
func parseNumber(what, text string) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%s is %q: it is a whole number from 1", what, text)
	}
	return n, nil
}

// shellWord is a text as one word of a shell's command line.
func shellWord(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
