package main

import (
	"context"

	"github.com/spf13/cobra"

	"zamok/client/admin"
)

func newTransfer(a *app) *cobra.Command {
	q := &requestFlags{}
	cmd := &cobra.Command{
		Use:   "transfer [ID]",
		Short: "transfer leadership to another node",
		Long: `Transfers leadership to the given node, or without an ID to the most up-to-date node
that replies and has free disk space. The command fails if there is none. Held locks and queue
positions are not affected. A leader that is shut down transfers its leadership by itself.`,
		Example: "  zamok transfer\n  zamok transfer n2",
		GroupID: groupOperate,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			to, did := "", "leadership is being transferred to another node"
			if len(args) > 0 {
				to = args[0]
				did = "leadership is being transferred to " + to
			}
			return nodeNotFoundError(
				q.runChange(a, cmd, func(ctx context.Context, op *admin.Admin) (string, error) {
					return did, op.Transfer(ctx, to)
				}))
		},
	}
	q.register(a, cmd, changeTimeoutDefault)
	return cmd
}
