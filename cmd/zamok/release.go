package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"zamok/api/view"
	"zamok/api/visible"
	"zamok/client"
	"zamok/client/admin"
)

// releaseCommand is `zamok release`.
type releaseCommand struct {
	requestFlags
	mine   string
	force  bool
	token  uint64
	reason string
}

func newRelease(a *app) *cobra.Command {
	v := &releaseCommand{}
	cmd := &cobra.Command{
		Use:   "release --mine FILE | NAME --force --reason TEXT [--token N]",
		Short: "release a reservation, or force-release a lock",
		Long: `With --mine, releases the reservation that ` + "`zamok acquire`" + ` has written to
a file, and removes the file. Repeating the command is safe. Exit codes: 119 there is no such file,
123 the reservation had ended before, and others may have held the lock since (the file is removed,
too), 124 unavailable (retry).

With --force, force-releases a lock: ends the acquisitions that hold it with a token of at most N,
and releases all locks that were acquired together with it. The reason is sent to the holder. The
holder may still be working when the lock is granted to the next client; storage that checks tokens
rejects its writes. Grants with higher tokens are not affected, so repeating the command is safe.

Without --token the command shows the holders, prompts for confirmation, and uses the highest token
that it has shown.`,
		Example: "  zamok release --mine staging.zamok\n  zamok release account/200 --force " +
			"--reason 'host db7 is gone'",
		GroupID: groupLocks,
		Args: func(cmd *cobra.Command, args []string) error {
			if v.mine != "" {
				if len(args) > 0 {
					return errors.New("--mine takes no NAME: the file contains it")
				}
				return nil
			}
			return cobra.ExactArgs(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if v.mine != "" && !v.force && v.reason == "" && v.token == 0 {
				return v.releaseMine(cmd)
			}
			if err := v.validate(); err != nil {
				return &usageError{cmd.CommandPath(), err}
			}
			return v.run(cmd, func(ctx context.Context, c *client.Client) error {
				return v.release(ctx, c, args[0])
			})
		},
	}
	v.register(a, cmd, requestTimeoutDefault)
	cmd.Flags().StringVar(&v.mine, "mine", "", "release the reservation in this `file`")
	cmd.Flags().BoolVar(&v.force, "force", false,
		"force-release NAME from its holder; required with NAME")
	cmd.Flags().Uint64Var(&v.token, "token", 0,
		"end only grants with a token of at most this `number` (default: show the holders "+
			"and prompt)")
	cmd.Flags().StringVar(&v.reason, "reason", "",
		"`text` that is sent to the holder and to watchers as the reason; required with --force")
	return cmd
}

func (v *releaseCommand) validate() error {
	switch {
	case v.mine != "":
		return errors.New("--mine releases a reservation of your own, which needs neither " +
			"--force nor --reason nor --token")
	case !v.force:
		return errors.New(
			"--force is missing: a holder may still be working when its lock is force-released; " +
				"to release a lock of your own, end `zamok lock` or your program, and a " +
				"reservation with --mine FILE")
	case v.reason == "":
		return errors.New("--reason is missing: it is sent to the holder that loses the lock")
	case v.token == 0 && v.app.output == "json":
		return errors.New("-o json does not prompt: give the --token that `zamok show` prints")
	}
	return nil
}

// releaseMine releases a reservation and then removes its file.
func (v *releaseCommand) releaseMine(cmd *cobra.Command) error {
	f, err := openReservation(v.mine)
	if err != nil {
		return err
	}
	v.useStoredEndpoints(cmd, f)
	return v.run(cmd, func(ctx context.Context, c *client.Client) error {
		err := c.ReleaseReservation(ctx, f.Reservation)
		if err != nil && !errors.Is(err, client.ErrLost) {
			return fmt.Errorf("%w; %s is kept: run the command again", err, f.path)
		}
		removing := f.remove()
		if err != nil {
			return errors.Join(f.lostError(err, "the file was removed"), removing)
		}
		if removing != nil {
			return fmt.Errorf("%s was released, but its file was not removed: %w", f.reservedText(),
				removing)
		}
		doc := struct {
			view.Ended
			Items []view.Item `json:"items"`
		}{view.Ended{State: "ended", Token: view.Number(f.Token)}, mapSlice(f.Items, newItem)}
		return v.app.print(doc, func(w io.Writer) {
			fmt.Fprintf(w, "%s: released; %s was removed\n", f.reservedText(), visible.Line(f.path))
		})
	})
}

func (v *releaseCommand) release(ctx context.Context, c *client.Client, name string) error {
	token := client.Token(v.token)
	if token == 0 {
		lock, err := getLock(ctx, c, name, showLimitDefault)
		if err != nil {
			return err
		}
		if len(lock.Holding) == 0 {
			return &exitError{exitTargetNotFound,
				fmt.Errorf("nobody holds %s; nothing was done", name)}
		}
		for _, t := range lock.Holding {
			token = max(token, client.Token(t.Token))
		}
		if err := v.confirm(ctx, lock); err != nil {
			return err
		}
	}
	ended, err := admin.New(c).ForceRelease(ctx, name, token, v.reason)
	if err != nil {
		return err
	}
	if len(ended) == 0 {
		return &exitError{exitTargetNotFound,
			fmt.Errorf("nobody holds %s with a token up to %d; nothing was done", name, token)}
	}
	doc := view.Forced{Ended: mapSlice(ended, func(t admin.TicketRef) view.TicketRef {
		return view.TicketRef{Session: view.Number(t.Session), Ticket: view.Number(t.Ticket)}
	})}
	return v.app.print(doc, func(w io.Writer) {
		for _, t := range ended {
			fmt.Fprintf(w, "force-released: session %d no longer holds %s\n", t.Session,
				visible.Line(name))
		}
	})
}

// confirm shows the holders and prompts a person.
func (v *releaseCommand) confirm(ctx context.Context, lock *view.Lock) error {
	lock.Queue = nil // only holders lose the lock
	writeLock(v.app.stderr, lock)
	fmt.Fprintf(v.app.stderr, "\nForce-release it from %d holder(s)? [y/N] ", len(lock.Holding))
	lines := make(chan string, 1)
	go func() { // not waited for: only the end of the process ends a read of standard input
		line, _ := bufio.NewReader(v.app.stdin).ReadString('\n')
		lines <- line
	}()
	select {
	case line := <-lines:
		if answer := strings.ToLower(strings.TrimSpace(line)); answer == "y" || answer == "yes" {
			return nil
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return errors.New("nothing was done, since it was not confirmed with y; a script gives --token")
}
