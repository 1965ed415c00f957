package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"zamok/client"
)

// acquireCommand is `zamok acquire`.
type acquireCommand struct {
	connectionFlags
	acquisitionFlags
	ttl  time.Duration
	path string
	meta string
}

func newAcquire(a *app) *cobra.Command {
	v := &acquireCommand{}
	cmd := &cobra.Command{
		Use:   "acquire NAME --for DURATION [flags]",
		Short: "reserve a lock for hours, without a process that holds it",
		Long: `Waits in a FIFO queue for a lock and reserves it: the lock stays held for the given
time after this command has ended, unless ` + "`zamok renew`" + ` renews it or
` + "`zamok release --mine`" + ` releases it before. This suits test environments, Terraform
states and maintenance windows. To run a command under a lock use ` + "`zamok lock`" + `.

The file that both commands need is written before anything is acquired. It contains a secret:
anyone who has it can release the lock. An existing file is never overwritten. To continue after a
lost connection, run the command again with the same file: it continues the same acquisition, or
renews the reservation.

The end of the reservation is an estimate: it is later by the time for which the cluster has no
leader. You are not notified when the reservation ends. Give the token to storage that checks
tokens, or run ` + "`zamok check`" + `.

Exit codes: 120 denied, 121 not acquired (--try), 122 wait timed out, 123 the reservation in the
file has ended, 124 unavailable (retry), 125 usage or configuration error, 128+n ended by signal n.
The file is kept if the locks may be held; the error says so.`,
		Example: `  zamok acquire staging --for 45m --meta 'load test, ask anna'
  zamok acquire terraform/prod --for 30m --wait 10m --file tf.zamok -o json
  zamok renew staging.zamok
  zamok release --mine staging.zamok`,
		GroupID: groupLocks,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cmp.Or(v.acquisitionFlags.validate(cmd), v.validate(cmd)); err != nil {
				return &usageError{cmd.CommandPath(), err}
			}
			return v.run(cmd, args[0])
		},
	}
	f := cmd.Flags()
	f.DurationVar(&v.ttl, "for", 0,
		"ttl of the reservation, from the grant or the last renewal on; at most the longest ttl "+
			"of the cluster (see zamok settings); required")
	f.StringVar(&v.path, "file", "",
		"`file` of the reservation (default: NAME.zamok in the working directory, with - for "+
			"each / of NAME)")
	f.StringVar(&v.meta, "meta", "",
		"`text` shown to people who look at the lock, up to 4096 bytes")
	v.acquisitionFlags.register(cmd)
	v.connectionFlags.register(a, cmd)
	return cmd
}

func (v *acquireCommand) validate(cmd *cobra.Command) error {
	switch {
	case v.ttl == 0:
		return errors.New("--for is missing: give the ttl of the reservation, as in --for 45m")
	case v.ttl < client.TTLMin:
		return fmt.Errorf("--for is %v: it must be at least %v", v.ttl, client.TTLMin)
	case len(v.meta) > metaBytesMax:
		return fmt.Errorf("--meta has %d bytes: it must have at most %d", len(v.meta), metaBytesMax)
	}
	return nil
}

// file returns the reservation in the file, or a new one if there is no file.
func (v *acquireCommand) file(name string) (*reservationFile, error) {
	path := v.path
	if path == "" {
		path = reservationFileName(name)
	}
	f, err := readReservation(path)
	if errors.Is(err, fs.ErrNotExist) {
		r := client.NewReservation(v.ttl, v.items(name)...)
		r.Label, r.Meta = truncateUTF8(userLabel(), labelBytesMax), []byte(v.meta)
		return &reservationFile{Reservation: r, path: path, endpoints: v.endpoints}, nil
	}
	if err == nil && (f.TTL != v.ttl || !slices.Equal(f.Items, v.items(name))) {
		err = fmt.Errorf(
			"%s belongs to another reservation, of %s for %s; nothing was done: give another "+
				"--file, or release that one first: zamok release --mine %s", path,
			f.reservedText(), spanText(f.TTL), shellWord(path))
	}
	return f, err
}

func (v *acquireCommand) run(cmd *cobra.Command, name string) error {
	f, err := v.file(name)
	if err != nil {
		return err
	}
	v.useStoredEndpoints(cmd, f)
	cfg, err := v.config()
	if err != nil {
		return err
	}
	c, err := client.New(cfg)
	if err != nil {
		return err
	}
	defer c.Close() // the reservation is no part of its session
	ctx, stop := signalContext(cmd.Context())
	defer stop()
	ctx, cancel := v.bounded(ctx)
	defer cancel()
	status := newStatusLine(v.app.stderr)
	if status.w != nil && f.Token == 0 && !v.try {
		status.print("waiting for " + f.reservedText() + v.holderText(ctx, c, name))
	}
	reserve := c.Reserve
	if v.try {
		reserve = c.TryReserve
	}
	until, err := reserve(ctx, f.Reservation, f.save)
	status.clear()
	if err != nil {
		return v.failed(name, f, signalOr(ctx, err))
	}
	return f.print(v.app, until)
}

// holderText describes the holder to a person who waits; "" if no node answers within a second.
func (v *acquireCommand) holderText(ctx context.Context, c *client.Client, name string) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	lock, err := getLock(ctx, c, name, 1)
	if err != nil || len(lock.Holding) == 0 {
		return ""
	}
	holder := lock.Holding[0]
	text := "; held by " + displayName(holder)
	if holder.Reserved {
		text += " until " + timeOfDayText(&holder.LeaseLeft)
	}
	return fmt.Sprintf("%s, %d waiting", text, lock.Waiters)
}

// failed removes the file if nothing is held for certain, and otherwise says what to do with it.
func (v *acquireCommand) failed(name string, f *reservationFile, err error) error {
	switch {
	case errors.Is(err, os.ErrExist):
		return fmt.Errorf("%s was created by another process meanwhile; nothing was done: run "+
			"the command again", f.path)
	case f.Token != 0 && errors.Is(err, client.ErrLost):
		return f.lostError(err, "remove the file and run the command again for another reservation")
	case f.Session == 0:
		return errors.Join(v.notAcquiredError(name, "", err), f.remove())
	}
	state := "the cluster may hold " + f.reservedText() + " for this reservation"
	if f.Token != 0 {
		state = fmt.Sprintf("%s is held with the token %d, and its lease was not confirmed",
			f.reservedText(), f.Token)
	}
	advice := fmt.Sprintf("%s is kept: run the command again to continue, or give up with: zamok "+
		"release --mine %s", f.path, shellWord(f.path))
	if interrupted := (*signalError)(nil); errors.As(err, &interrupted) {
		v.app.logger().Warn(state + "; " + advice)
		return err
	}
	if unconfirmed := (*client.UnconfirmedError)(nil); errors.As(err, &unconfirmed) {
		return fmt.Errorf("%w; %s", err, advice)
	}
	return fmt.Errorf("%w; %s; %s", err, state, advice)
}
