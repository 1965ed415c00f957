package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"zamok/client"
)

// changeDoc describes a change of the cluster that was made.
type changeDoc struct {
	Changed string `json:"changed"`
}

// runChange is a verb that changes the cluster and prints what it did.
func (q *requestFlags) runChange(a *app, cmd *cobra.Command, f func(context.Context, *client.Client) (summary string, err error)) error {
	return q.run(cmd, func(ctx context.Context, c *client.Client) error {
		ctx, cancel := context.WithTimeoutCause(ctx, q.timeout, errTimeout)
		defer cancel()
		summary, err := f(ctx, c)
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
		Long: `Adds a node to the cluster. The node must be running with an empty data directory, know the cluster, and
be reachable by its peers at ADDRESS. It first receives the log; when it has nearly caught up it becomes a
voter. If the command times out before that, run it again; it is idempotent.

With ` + "`zamok server --join`" + ` a node asks for this itself. With TLS between the nodes, the command is needed only for a
node whose name is neither a member's nor among --peer-allowed-names of the members. Membership changes are made one at a time. A node that lost its
data directory joins under its old name and address: it replaces the lost member once that has not answered
the leader for 30 seconds, at most once in ten minutes.`,
		Example: "  zamok join n4 db4.example:5751",
		GroupID: groupOperate,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return q.runChange(a, cmd, func(ctx context.Context, c *client.Client) (string, error) {
				return fmt.Sprintf("%s is a voter of the cluster now", args[0]), c.Join(ctx, args[0], args[1])
			})
		},
	}
	q.register(a, cmd, changeTimeoutDefault)
	return cmd
}
