package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"zamok/client"
	"zamok/client/admin"
)

// changeDoc describes a change of the cluster that was made.
type changeDoc struct {
	Message string `json:"message"` // for people
}

// runChange runs a command that changes the cluster, and prints what it did.
func (q *requestFlags) runChange(a *app, cmd *cobra.Command,
	f func(context.Context, *admin.Admin) (summary string, err error)) error {
	return q.run(cmd, func(ctx context.Context, c *client.Client) error {
		ctx, cancel := context.WithTimeoutCause(ctx, q.timeout, errTimeout)
		defer cancel()
		summary, err := f(ctx, admin.New(c))
		if err != nil {
			return err
		}
		return a.print(changeDoc{summary}, func(w io.Writer) { fmt.Fprintln(w, summary) })
	})
}

func newJoin(a *app) *cobra.Command {
	q := &requestFlags{}
	cmd := &cobra.Command{
		Use:   "join ID ADDRESS",
		Short: "add a node to the cluster",
		Long: `Adds a node to the cluster. The node must be running with an empty data directory,
know the cluster, and be reachable by its peers at ADDRESS. It first receives the log; when it has
nearly caught up it becomes a voter. If the command times out before that, run it again; it is
idempotent.

A node that is started with ` + "`zamok server --join`" + ` requests this itself. With TLS between
the nodes, the command is needed only for a node whose name is neither that of a member nor among
--peer-allowed-names of the members. Membership changes are made one at a time. A node that lost its
data directory joins under its old name and address: it replaces the lost member when that has not
replied to the leader for 30 seconds, at most once in ten minutes.`,
		Example: "  zamok join n4 db4.example:5751",
		GroupID: groupOperate,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return q.runChange(a, cmd, func(ctx context.Context, op *admin.Admin) (string, error) {
				return fmt.Sprintf("%s is a voter of the cluster now", args[0]), op.Join(ctx,
					args[0], args[1])
			})
		},
	}
	q.register(a, cmd, changeTimeoutDefault)
	return cmd
}
