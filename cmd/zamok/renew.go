package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"zamok/client"
)

func newRenew(a *app) *cobra.Command {
	q := &requestFlags{}
	cmd := &cobra.Command{
		Use:   "renew FILE",
		Short: "renew a reservation",
		Long: `Renews a reservation that ` + "`zamok acquire`" + ` has written to a file: it lasts
for the time of --for from now on. Repeating the command is safe.

Exit codes: 119 there is no such file, 123 the reservation has ended, 124 unavailable (retry), 125
usage or configuration error.`,
		Example: "  zamok renew staging.zamok",
		GroupID: groupLocks,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := openReservation(args[0])
			if err != nil {
				return err
			}
			if f.Token == 0 {
				return fmt.Errorf("nothing was done: %s has no token, so its acquisition has not "+
					"been granted as far as is known; run its `zamok acquire` again", f.path)
			}
			q.useStoredEndpoints(cmd, f)
			return q.run(cmd, func(ctx context.Context, c *client.Client) error {
				until, err := c.RenewReservation(ctx, f.Reservation)
				switch {
				case errors.Is(err, client.ErrLost):
					return f.lostError(err, "remove the file before another `zamok acquire`")
				case err != nil:
					return err
				}
				return f.print(a, until)
			})
		},
	}
	q.register(a, cmd, requestTimeoutDefault)
	return cmd
}
