package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"zamok/client"
)

func newExpire(a *app) *cobra.Command {
	q := &requestFlags{}
	reason := ""
	cmd := &cobra.Command{
		Use:   "expire SESSION --reason TEXT",
		Short: "end a session and release all of its locks",
		Long: `Ends a session as if its lease had expired: its locks are released and its queue positions are given up.
The reason is reported to the client, which may still be working when its locks are granted to others.`,
		Example: "  zamok expire 123456 --reason 'host db7 is gone'",
		GroupID: groupOperate,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			session, err := parsePositive("SESSION", args[0])
			if err == nil && reason == "" {
				err = errors.New("--reason is missing: the client gets it as the cause of its session's end")
			}
			if err != nil {
				return &usageError{cmd.CommandPath(), err}
			}
			return q.run(cmd, func(ctx context.Context, c *client.Client) error {
				err := c.ExpireSession(ctx, session, reason)
				var failed *client.Error
				if errors.As(err, &failed) && errors.Is(err, client.ErrSessionExpired) {
					if failed.Outcome == client.Unknown {
						return fmt.Errorf("session %d is over; whether this call has ended it is not known", session)
					}
					return &exitError{exitTargetNotFound, fmt.Errorf("no session %d lives; nothing was done", session)}
				}
				if err != nil {
					return err
				}
				doc := struct {
					Ended uint64 `json:"ended,string"`
				}{session}
				return a.print(doc, func(w io.Writer) { fmt.Fprintf(w, "session %d is over\n", session) })
			})
		},
	}
	q.register(a, cmd, requestTimeoutDefault)
	cmd.Flags().StringVar(&reason, "reason", "", "reason that is reported to the client and to watchers")
	return cmd
}
