package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"zamok/client"
)

func newRemove(a *app) *cobra.Command {
	q := &asking{}
	cmd := &cobra.Command{
		Use:   "remove ID",
		Short: "take a node out of the cluster, for ever",
		Long: `Takes a node out of the cluster. If it runs and hears of it, it ends by itself within seconds; else stop it.
Its id can't be used again: a machine comes back with an empty directory and another id. A node that lost
its disk is removed before its successor joins.`,
		Example: "  zamok remove n3",
		GroupID: groupRun,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return q.change(a, cmd, func(ctx context.Context, c *client.Client) (string, error) {
				return fmt.Sprintf("%s is no node of the cluster any more", args[0]), c.Remove(ctx, args[0])
			})
		},
	}
	q.flags(a, cmd, changePatience)
	return cmd
}
