package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"zamok/client"
)

// lockCommand is `zamok lock`.
type lockCommand struct {
	holdFlags
	with           []string
	try            bool
	wait           time.Duration
	shared         bool
	permits, limit uint32
}

func newLock(a *app) *cobra.Command {
	v := &lockCommand{}
	cmd := &cobra.Command{
		Use:   "lock NAME [flags] -- COMMAND [ARGUMENT…]",
		Short: "run a command while holding a lock",
		Long: `Waits in a FIFO queue for a lock, runs a command while holding it, and releases it when the command ends.

If the lease cannot be renewed, the command receives TERM, and KILL after --kill-after, early enough that
it has ended before the lock can be granted to another client. If an operator releases the lock by force,
the command is signalled in the same way, but another client may hold the lock in the meantime. Use the
token against that, and against child processes that outlive the command: storage that rejects tokens lower
than the highest it has seen is safe.

Environment of the command:
  ZAMOK_LOCK_NAME                 NAME
  ZAMOK_LOCK_TOKEN                fencing token of the grant
  ZAMOK_LOCK_DEADLINE             end of the lease when the command started;
                                  renewals move it on
  ZAMOK_LOCK_SESSION, ..._TICKET  identify the grant, with the token, for
                                  ` + "`zamok check`" + `

Exit codes: the command's own; 120 denied, 121 not acquired (--try), 122 wait timed out, 123 lock lost,
124 unavailable (retry), 125 usage or configuration error; 126 and 127 the command cannot be run or found,
128+n ended by signal n.`,
		Example: `  zamok lock nightly --try -- ./report          # or not at all, if it runs elsewhere
  zamok lock stock --wait 30s -- ./count
  zamok lock render --permits 1 --of 3 -- ./render
  zamok lock account/200 --with account/300 -- ./transfer`,
		GroupID: groupLocks,
		Args:    checkNameAndCommand,
	}
	f := cmd.Flags()
	f.StringArrayVar(&v.with, "with", nil, "additional lock, acquired together with NAME; may be repeated")
	f.BoolVar(&v.try, "try", false, "do not wait: exit with 121 if the lock is not free")
	f.DurationVar(&v.wait, "wait", 0, "longest wait; then exit with 122 (default: no limit)")
	f.BoolVar(&v.shared, "shared", false, "acquire the lock in shared mode")
	f.Uint32Var(&v.permits, "permits", 0, "acquire this many permits of a lock with --of permits")
	f.Uint32Var(&v.limit, "of", 0, "total number of permits; all users of the lock must agree on it")
	v.holdFlags.register(a, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := v.validate(cmd); err != nil {
			return &usageError{cmd.CommandPath(), err}
		}
		return v.run(cmd.Context(), args[0], args[1:])
	}
	return cmd
}

func (v *lockCommand) validate(cmd *cobra.Command) error {
	waitSet := cmd.Flags().Changed("wait")
	switch {
	case v.try && waitSet:
		return errors.New("--try and --wait exclude each other: give one")
	case waitSet && v.wait <= 0:
		return fmt.Errorf("--wait is %v: it must be above 0; not to wait at all is --try", v.wait)
	case v.shared && (v.permits > 0 || v.limit > 0):
		return errors.New("--shared and --permits are different kinds of locks: give one")
	case v.permits > v.limit:
		return fmt.Errorf("--permits is %d, of %d: give with --of how many permits the lock has", v.permits, v.limit)
	case v.limit > 0 && v.permits == 0:
		return errors.New("--of is how many permits the lock has: give with --permits how many you want")
	}
	return v.holdFlags.validate()
}

func (v *lockCommand) item(name string) client.Item {
	switch {
	case v.shared:
		return client.SharedItem(name)
	case v.permits > 0:
		return client.PermitsItem(name, v.permits, v.limit)
	}
	return client.ExclusiveItem(name)
}

func (v *lockCommand) run(ctx context.Context, name string, argv []string) error {
	h, err := v.newRunner(argv)
	if err != nil {
		return err
	}
	defer h.close()
	items := []client.Item{v.item(name)}
	for _, other := range v.with {
		items = append(items, v.item(other))
	}
	lock, err := h.acquire(ctx, func(ctx context.Context, options ...client.Option) (*client.Lock, error) {
		if v.try {
			return h.client.TryLockAll(ctx, items, options...)
		}
		if v.wait > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeoutCause(ctx, v.wait, errWaitTimeout)
			defer cancel()
		}
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
	return &exitError{exitLost, fmt.Errorf("%w; the command ended by itself, with exit code %d, and may not have run alone", reason, outcome.exitCode)}
}

var errWaitTimeout = errors.New("the wait (--wait) was over")

// notAcquiredError gives the reason its exit code, and names the blockers at the end of a wait.
func (v *lockCommand) notAcquiredError(name, blockers string, err error) error {
	switch {
	case errors.Is(err, client.ErrUnavailable):
		return err
	case errors.Is(err, errWaitTimeout):
		names := strings.Join(append([]string{name}, v.with...), ", ")
		return &exitError{exitWaitTimeout, fmt.Errorf("%s not acquired within %v (--wait)%s", names, v.wait, blockers)}
	case v.try && errors.Is(err, client.ErrNotAcquired):
		return &exitError{exitNotAcquired, err}
	}
	return err
}

// exitStatus ends with a command's own code.
func exitStatus(code int) error {
	if code == 0 {
		return nil
	}
	return &exitError{code: code}
}
