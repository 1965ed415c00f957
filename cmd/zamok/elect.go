package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"zamok/client"
)

// electCommand is `zamok elect`.
type electCommand struct{ holdFlags }

func newElect(a *app) *cobra.Command {
	v := &electCommand{}
	cmd := &cobra.Command{
		Use:   "elect NAME [flags] -- COMMAND [ARGUMENT…]",
		Short: "run a command while elected leader of a name",
		Long: `Campaigns for an election and runs a command while elected. One candidate of a name
is the leader at a time. If leadership is lost, the command is ended as by ` + "`zamok lock`" + `,
before another candidate is elected, and this process campaigns again. When the command ends by
itself, this process resigns and exits with the command's exit code.`,
		Example: "  zamok elect billing -- ./billing-worker",
		GroupID: groupLocks,
		Args:    checkNameAndCommand,
	}
	v.holdFlags.register(a, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := v.validate(); err != nil {
			return &usageError{cmd.CommandPath(), err}
		}
		return v.run(cmd.Context(), args[0], args[1:])
	}
	return cmd
}

func (v *electCommand) run(ctx context.Context, name string, argv []string) error {
	h, err := v.newRunner(argv)
	if err != nil {
		return err
	}
	defer h.close()
	log := v.app.logger()
	for {
		lock, err := h.acquire(ctx,
			func(ctx context.Context, options ...client.Option) (*client.Lock, error) {
				return h.client.Lock(ctx, name, options...)
			})
		if err != nil {
			return err
		}
		log.Info("elected", "name", name, "token", fmt.Sprint(lock.Token()))
		outcome, reason, err := h.run(lock, argv)
		if err != nil {
			return err
		}
		if !outcome.terminated {
			if reason != nil {
				log.Warn("the command ended; leadership may have been lost before its end", "name",
					name, "reason", reason)
			}
			return exitStatus(outcome.exitCode)
		}
		if outcome.stopSignal != 0 {
			return &signalError{outcome.stopSignal}
		}
		log.Warn("leadership lost; the command was ended, campaigning again", "name", name,
			"reason", reason)
	}
}
