package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"zamok/client"
)

// lockCommand is `zamok lock`.
type lockCommand struct {
	holdFlags
	acquisitionFlags
}

func newLock(a *app) *cobra.Command {
	v := &lockCommand{}
	cmd := &cobra.Command{
		Use:   "lock NAME [flags] -- COMMAND [ARGUMENT…]",
		Short: "run a command while holding a lock",
		Long: `Waits in a FIFO queue for a lock, runs a command while holding it, and releases it
when the command ends.

If the lease cannot be renewed, the command receives TERM, and KILL after --kill-after, early enough
that it has ended before the lock can be granted to another client. If an operator force-releases
the lock, the command is signalled in the same way, but another client may hold the lock in the
meantime. Use the token against that, and against child processes that outlive the command: storage
that rejects tokens lower than the highest it has seen is safe.

Environment of the command:
  ZAMOK_LOCK_NAME                 NAME
  ZAMOK_LOCK_TOKEN                fencing token of the grant
  ZAMOK_LOCK_DEADLINE             end of the lease when the command started;
                                  renewals move it on
  ZAMOK_LOCK_SESSION, ..._TICKET  identify the grant, with the token, for
                                  ` + "`zamok check`" + `

Exit codes: the command's own; 120 denied, 121 not acquired (--try), 122 wait timed out, 123 lock
lost, 124 unavailable (retry), 125 usage or configuration error; 126 and 127 the command cannot be
run or found, 128+n ended by signal n.`,
		Example: `  zamok lock nightly --try -- ./report          # skip it if it runs elsewhere
  zamok lock stock --wait 30s -- ./count
  zamok lock render --permits 1 --of 3 -- ./render
  zamok lock account/200 --with account/300 -- ./transfer`,
		GroupID: groupLocks,
		Args:    checkNameAndCommand,
	}
	v.acquisitionFlags.register(cmd)
	v.holdFlags.register(a, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := cmp.Or(v.acquisitionFlags.validate(cmd), v.holdFlags.validate()); err != nil {
			return &usageError{cmd.CommandPath(), err}
		}
		return v.run(cmd.Context(), args[0], args[1:])
	}
	return cmd
}

func (v *lockCommand) run(ctx context.Context, name string, argv []string) error {
	h, err := v.newRunner(argv)
	if err != nil {
		return err
	}
	defer h.close()
	items := v.items(name)
	lock, err := h.acquire(ctx,
		func(ctx context.Context, options ...client.Option) (*client.Lock, error) {
			if v.try {
				return h.client.TryLockAll(ctx, items, options...)
			}
			ctx, cancel := v.bounded(ctx)
			defer cancel()
			return h.client.LockAll(ctx, items, options...)
		})
	if err != nil {
		return v.notAcquiredError(name, h.status.blockers, err)
	}
	outcome, reason, err := h.run(lock, argv)
	if err != nil {
		return err
	}
	switch {
	case reason == nil:
		return exitStatus(outcome.exitCode)
	case outcome.terminated:
		return &exitError{exitLost, fmt.Errorf("%w; the command was ended", reason)}
	}
	return &exitError{exitLost,
		fmt.Errorf("%w; the command had ended by itself, with exit code %d, and another may have "+
			"run at the same time", reason, outcome.exitCode)}
}

// exitStatus is the error that makes a command's own exit code that of this process.
func exitStatus(code int) error {
	if code == 0 {
		return nil
	}
	return &exitError{code: code}
}
