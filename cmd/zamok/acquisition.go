package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"zamok/client"
	"zamok/session/visible"
)

// acquisitionFlags is what the verbs have in common that acquire locks: which, how, and for how long they wait.
type acquisitionFlags struct {
	with           []string
	try            bool
	wait           time.Duration
	shared         bool
	permits, limit uint32
}

func (q *acquisitionFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&q.with, "with", nil, "additional lock, acquired together with NAME; may be repeated")
	f.BoolVar(&q.try, "try", false, "do not wait: exit with 121 if the lock is not free")
	f.DurationVar(&q.wait, "wait", 0, "longest wait; then exit with 122 (default: no limit)")
	f.BoolVar(&q.shared, "shared", false, "acquire the lock in shared mode")
	f.Uint32Var(&q.permits, "permits", 0, "acquire this many permits of a lock with --of permits")
	f.Uint32Var(&q.limit, "of", 0, "total number of permits; all users of the lock must agree on it")
}

func (q *acquisitionFlags) validate(cmd *cobra.Command) error {
	waitSet := cmd.Flags().Changed("wait")
	switch {
	case q.try && waitSet:
		return errors.New("--try and --wait exclude each other: give one")
	case waitSet && q.wait <= 0:
		return fmt.Errorf("--wait is %v: it must be above 0; not to wait at all is --try", q.wait)
	case q.shared && (q.permits > 0 || q.limit > 0):
		return errors.New("--shared and --permits are different kinds of locks: give one")
	case q.permits > q.limit:
		return fmt.Errorf("--permits is %d, of %d: give with --of how many permits the lock has", q.permits, q.limit)
	case q.limit > 0 && q.permits == 0:
		return errors.New("--of is how many permits the lock has: give with --permits how many you want")
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
		return client.PermitsItem(name, q.permits, q.limit)
	}
	return client.ExclusiveItem(name)
}

// bounded is a context for the wait.
func (q *acquisitionFlags) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if q.wait == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, q.wait, errWaitTimeout)
}

var errWaitTimeout = errors.New("the wait (--wait) was over")

// notAcquiredError gives the reason its exit code, and names the blockers at the end of a wait.
func (q *acquisitionFlags) notAcquiredError(name, blockers string, err error) error {
	switch {
	case errors.Is(err, client.ErrUnavailable):
		return err
	case errors.Is(err, errWaitTimeout):
		names := strings.Join(mapSlice(append([]string{name}, q.with...), visible.Word), ", ")
		return &exitError{exitWaitTimeout, fmt.Errorf("%s not acquired within %v (--wait)%s", names, q.wait, blockers)}
	case q.try && errors.Is(err, client.ErrNotAcquired):
		return &exitError{exitNotAcquired, err}
	}
	return err
}
