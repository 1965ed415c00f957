package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"zamok/client"
)

func newRemove(a *app) *cobra.Command {
	q := &asking{}
	cmd := &cobra.Command{
		Use:   "remove ID",
		Short: "take a node out of the cluster",
		Long: `Takes a node out of the cluster. If it runs, it learns of it and ends by itself within seconds; one that is
started again later learns of it then. Its data directory can't come back; the machine can, with an empty
one and --join.

A removal is refused if the voters that remain would have no majority that answers: then nothing could be
decided any more. Bring a node back first.`,
		Example: "  zamok remove n3",
		GroupID: groupRun,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return noSuchNode(q.change(a, cmd, func(ctx context.Context, c *client.Client) (string, error) {
				return fmt.Sprintf("%s is no node of the cluster any more", args[0]), c.Remove(ctx, args[0])
			}))
		},
	}
	q.flags(a, cmd, changePatience)
	return cmd
}

// noSuchNode gives the refusal of a name that no node has its exit code.
func noSuchNode(err error) error {
	var e *client.Error
	if errors.As(err, &e) && errors.Is(err, client.ErrInvalid) && e.Field == "id" {
		return &exitError{exitNoSuch, err}
	}
	return err
}
