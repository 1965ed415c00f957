package main

import (
	"context"

	"github.com/spf13/cobra"

	"zamok/client"
)

func newTransfer(a *app) *cobra.Command {
	q := &asking{}
	cmd := &cobra.Command{
		Use:   "transfer [ID]",
		Short: "hand the leadership to another node",
		Long: `Hands the leadership to a node, or without an ID to the one that is furthest, of those that answer, have room
on their disks and are not far behind; if there is none, that is refused. Held locks and places in queues stay
as they are. A leader that is stopped in good order does this by itself.`,
		Example: "  zamok transfer\n  zamok transfer n2",
		GroupID: groupRun,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			to, did := "", "another node leads now, or soon"
			if len(args) > 0 {
				to = args[0]
				did = to + " leads now, or soon"
			}
			return noSuchNode(q.change(a, cmd, func(ctx context.Context, c *client.Client) (string, error) { return did, c.Transfer(ctx, to) }))
		},
	}
	q.flags(a, cmd, changePatience)
	return cmd
}
