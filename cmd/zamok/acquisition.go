package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"zamok/api/visible"
	"zamok/client"
)

// acquisitionFlags are the flags of the commands that acquire locks: which locks, in which mode,
// and how long to wait.
type acquisitionFlags struct {
	with        []string
	try         bool
	wait        time.Duration
	shared      bool
	permits, of uint32
}

func (q *acquisitionFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&q.with, "with", nil,
		"`name` of another lock, acquired together with NAME; repeatable")
	f.BoolVar(&q.try, "try", false, "do not wait: exit with 121 if the lock is not free")
	f.DurationVar(&q.wait, "wait", 0, "maximum wait; then exit with 122 (default: no limit)")
	f.BoolVar(&q.shared, "shared", false, "acquire the lock in shared mode")
	f.Uint32Var(&q.permits, "permits", 0, "`number` of permits to acquire, out of --of")
	f.Uint32Var(&q.of, "of", 0,
		"total `number` of permits of the lock; all clients of the lock must give the same")
}

func (q *acquisitionFlags) validate(cmd *cobra.Command) error {
	waitSet := cmd.Flags().Changed("wait")
	switch {
	case q.try && waitSet:
		return errors.New("--try and --wait exclude each other: give one")
	case waitSet && q.wait <= 0:
		return fmt.Errorf("--wait is %v: it must be above 0; to not wait, use --try", q.wait)
	case q.shared && (q.permits > 0 || q.of > 0):
		return errors.New("--shared and --permits exclude each other: give one")
	case q.permits > q.of:
		return fmt.Errorf("--permits is %d and --of %d: give with --of the total number of "+
			"permits of the lock", q.permits, q.of)
	case q.of > 0 && q.permits == 0:
		return errors.New(
			"--permits is missing: give with it the number of permits to acquire, out of --of")
	}
	return nil
}

// items are the locks to acquire.
func (q *acquisitionFlags) items(name string) []client.Item {
	return mapSlice(append([]string{name}, q.with...), q.item)
}

func (q *acquisitionFlags) item(name string) client.Item {
	switch {
	case q.shared:
		return client.SharedItem(name)
	case q.permits > 0:
		return client.PermitsItem(name, q.permits, q.of)
	}
	return client.ExclusiveItem(name)
}

// bounded is a context that ends with the wait.
func (q *acquisitionFlags) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if q.wait == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, q.wait, errWaitTimeout)
}

var errWaitTimeout = errors.New("the wait (--wait) timed out")

// notAcquiredError adds the exit code to an error, and the blockers to that of a wait that timed
// out.
func (q *acquisitionFlags) notAcquiredError(name, blockers string, err error) error {
	switch {
	case errors.Is(err, client.ErrUnavailable):
		return err
	case errors.Is(err, errWaitTimeout):
		names := strings.Join(mapSlice(append([]string{name}, q.with...), visible.Word), ", ")
		return &exitError{exitWaitTimeout,
			fmt.Errorf("%s not acquired within %v (--wait)%s", names, q.wait, blockers)}
	case q.try && errors.Is(err, client.ErrNotAcquired):
		return &exitError{exitNotAcquired, err}
	}
	return err
}
