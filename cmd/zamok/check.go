package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"zamok/api/view"
	"zamok/client"
)

// checkCommand is `zamok check`.
type checkCommand struct {
	requestFlags
	session, ticket uint64
}

func newCheck(a *app) *cobra.Command {
	v := &checkCommand{}
	cmd := &cobra.Command{
		Use:   "check NAME TOKEN",
		Short: "test whether a lock is held with a token (exit code 0: yes, 1: no)",
		Long: `Tests whether a lock is held with a token. A positive answer was true at some moment
between the request and the answer; it is no promise about later moments. A token identifies an
exclusive grant. Shared grants and permits may share a token: give --session and --ticket as well.`,
		Example: `  zamok check stock "$ZAMOK_LOCK_TOKEN"
  zamok check pool "$ZAMOK_LOCK_TOKEN" --session "$ZAMOK_LOCK_SESSION" --ticket "$ZAMOK_LOCK_TICKET"`,
		GroupID: groupInspect,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			token, err := parsePositive("TOKEN", args[1])
			if err == nil && (v.session == 0) != (v.ticket == 0) {
				err = errors.New(
					"--session and --ticket identify a grant together: give both or neither")
			}
			if err != nil {
				return &usageError{cmd.CommandPath(), err}
			}
			grant := client.Grant{Name: args[0], Token: client.Token(token), Session: v.session,
				Ticket: v.ticket}
			return v.run(cmd, func(ctx context.Context, c *client.Client) error {
				return v.check(ctx, c, grant)
			})
		},
	}
	v.register(a, cmd, requestTimeoutDefault)
	cmd.Flags().Uint64Var(&v.session, "session", 0, "`id` of the session of the grant")
	cmd.Flags().Uint64Var(&v.ticket, "ticket", 0, "`number` of the ticket of the grant")
	return cmd
}

func (v *checkCommand) check(ctx context.Context, c *client.Client, grant client.Grant) error {
	held, stamp, err := c.Check(ctx, grant)
	if err != nil {
		return err
	}
	doc := view.Checked{Held: held, Stamp: newStamp(stamp)}
	err = v.app.print(doc, func(w io.Writer) {
		fmt.Fprintln(w, map[bool]string{true: "held", false: "not held"}[held])
	})
	if err == nil && !held {
		err = &exitError{code: exitNotHeld}
	}
	return err
}
