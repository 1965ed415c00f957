package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"zamok/api/view"
	"zamok/client"
	"zamok/client/admin"
)

func newExpire(a *app) *cobra.Command {
	q := &requestFlags{}
	reason := ""
	cmd := &cobra.Command{
		Use:   "expire SESSION --reason TEXT",
		Short: "expire a session and release its locks",
		Long: `Expires a session before its lease ends: its locks are released and its waiting
acquisitions end. The reason is sent to the client, which may still be working when its locks are
granted to others.`,
		Example: "  zamok expire 123456 --reason 'host db7 is gone'",
		GroupID: groupOperate,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			session, err := parsePositive("SESSION", args[0])
			if err == nil && reason == "" {
				err = errors.New(
					"--reason is missing: it is sent to the client whose session expires")
			}
			if err != nil {
				return &usageError{cmd.CommandPath(), err}
			}
			return q.run(cmd, func(ctx context.Context, c *client.Client) error {
				err := admin.New(c).ExpireSession(ctx, session, reason)
				var failed *client.Error
				if errors.As(err, &failed) && errors.Is(err, client.ErrSessionExpired) {
					if failed.Outcome == client.Unknown {
						return fmt.Errorf("session %d has ended; it is not known whether this "+
							"command has expired it", session)
					}
					return &exitError{exitTargetNotFound,
						fmt.Errorf("there is no live session %d; nothing was done", session)}
				}
				if err != nil {
					return err
				}
				doc := view.Ended{State: "ended", Reason: "expired_by_operator"}
				return a.print(doc, func(w io.Writer) {
					fmt.Fprintf(w, "session %d: expired\n", session)
				})
			})
		},
	}
	q.register(a, cmd, requestTimeoutDefault)
	cmd.Flags().StringVar(&reason, "reason", "",
		"`text` that is sent to the client and to watchers as the reason; required")
	return cmd
}
