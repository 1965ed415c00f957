package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"zamok/client"
)

// electVerb is `zamok elect`.
type electVerb struct{ holding }

func newElect(a *app) *cobra.Command {
	v := &electVerb{}
	cmd := &cobra.Command{
		Use:   "elect NAME [flags] -- COMMAND [ARGUMENT…]",
		Short: "run a command while elected leader of a name",
		Long: `Campaigns for an election and runs a command while elected. One candidate of a name is the leader at a
time. If leadership is lost, the command is ended as by ` + "`zamok lock`" + `, before another candidate is elected,
and this process campaigns again. When the command ends by itself, this process resigns and exits with the
command's exit code.`,
		Example: "  zamok elect billing -- ./billing-worker",
		GroupID: groupLocks,
		Args:    nameAndCommand,
	}
	v.holding.flags(a, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := v.check(); err != nil {
			return &usageError{cmd.CommandPath(), err}
		}
		return v.run(cmd.Context(), args[0], args[1:])
	}
	return cmd
}

func (v *electVerb) run(ctx context.Context, name string, argv []string) error {
	h, err := v.begin(argv)
	if err != nil {
		return err
	}
	defer h.end()
	log := v.app.logger()
	for {
		lock, err := h.acquire(ctx, func(ctx context.Context, options ...client.Option) (*client.Lock, error) {
			return h.client.Lock(ctx, name, options...)
		})
		if err != nil {
			return err
		}
		log.Info("elected", "name", name, "token", fmt.Sprint(lock.Token()))
		o, why, err := h.run(lock, argv)
		if err != nil {
			return err
		}
		if !o.ended {
			if why != nil {
				log.Warn("the command ended; leadership may have been lost before its end", "name", name, "reason", why)
			}
			return exitWith(o.code)
		}
		if o.asked != 0 {
			return &signalError{o.asked}
		}
		log.Warn("leadership lost; the command was stopped, campaigning again", "name", name, "reason", why)
	}
}
