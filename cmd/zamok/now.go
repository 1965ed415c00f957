package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"zamok/client"
	"zamok/client/admin"
)

func newNow(a *app) *cobra.Command {
	q := &requestFlags{}
	cmd := &cobra.Command{
		Use:   "now",
		Short: "read the cluster clock",
		Long: `Reads the replicated clock with a linearizable read. Stamps are ordered by term, then
by index: a read that starts after another one ended returns a greater stamp. The time is how long
the cluster has had a leader.`,
		GroupID: groupInspect,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return q.run(cmd, func(ctx context.Context, c *client.Client) error {
				stamp, err := admin.New(c).Now(ctx)
				if err != nil {
					return err
				}
				return a.print(newStamp(stamp), func(w io.Writer) {
					fmt.Fprintf(w, "term %d, index %d, time %v\n", stamp.Term, stamp.Index,
						stamp.Time)
				})
			})
		},
	}
	q.register(a, cmd, requestTimeoutDefault)
	return cmd
}
