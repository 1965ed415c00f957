package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"zamok/client"
	"zamok/client/admin"
)

func newRemove(a *app) *cobra.Command {
	q := &requestFlags{}
	cmd := &cobra.Command{
		Use:   "remove ID",
		Short: "remove a node from the cluster",
		Long: `Removes a node from the cluster. A running node notices its removal and exits within
seconds; a stopped one exits when it is started again. Its data directory cannot rejoin; the machine
can, with an empty data directory and --join.

The removal is refused if no majority of the remaining voters replies, because the cluster could not
commit anything afterwards. Bring a node back first.`,
		Example: "  zamok remove n3",
		GroupID: groupOperate,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return nodeNotFoundError(
				q.runChange(a, cmd, func(ctx context.Context, op *admin.Admin) (string, error) {
					return fmt.Sprintf("%s is no longer a member of the cluster",
						args[0]), op.Remove(ctx, args[0])
				}))
		},
	}
	q.register(a, cmd, changeTimeoutDefault)
	return cmd
}

// nodeNotFoundError adds the exit code to the error that no node has a name.
func nodeNotFoundError(err error) error {
	var e *client.Error
	if errors.As(err, &e) && errors.Is(err, client.ErrInvalid) && e.Field == "id" {
		return &exitError{exitTargetNotFound, err}
	}
	return err
}
