package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"zamok/client"
	"zamok/session/visible"
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
		Short: "release a reservation, or any lock by force",
		Long: `With --mine, releases the reservation that ` + "`zamok acquire`" + ` has written to a file, and removes the file. To
repeat it is safe. Exit codes: 119 there is no such file, 123 the reservation had ended before, and others may have held
the lock since (the file is removed, too), 124 unavailable (retry).

With --force, ends the acquisition that holds a lock with a token of at most N, including all locks that were acquired
together with it. The reason is reported to the holder. The holder may still be working when the lock is
granted to the next client; storage that checks tokens rejects its writes. Later grants are not affected, so
the command may be repeated.

Without --token the command shows the holder, asks for confirmation, and uses the token that it has shown.`,
		Example: "  zamok release --mine staging.zamok\n  zamok release account/200 --force --reason 'host db7 is gone'",
		GroupID: groupLocks,
		Args: func(cmd *cobra.Command, args []string) error {
			if v.mine != "" {
				if len(args) > 0 {
					return errors.New("--mine needs no NAME: the file has it")
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
			return v.run(cmd, func(ctx context.Context, c *client.Client) error { return v.release(ctx, c, args[0]) })
		},
	}
	v.register(a, cmd, requestTimeoutDefault)
	cmd.Flags().StringVar(&v.mine, "mine", "", "release the reservation in this `file`")
	cmd.Flags().BoolVar(&v.force, "force", false, "required, since the holder has not released the lock")
	cmd.Flags().Uint64Var(&v.token, "token", 0, "end grants up to this token (default: look, and ask)")
	cmd.Flags().StringVar(&v.reason, "reason", "", "reason that is reported to the holder and to watchers")
	return cmd
}

func (v *releaseCommand) validate() error {
	switch {
	case v.mine != "":
		return errors.New("--mine releases a reservation of your own, which needs neither --force nor --reason nor --token")
	case !v.force:
		return errors.New("this takes the lock away from a holder that may still be working under it: confirm with --force; " +
			"a lock of your own is released by the end of `zamok lock`, or of your program, and a reservation by --mine FILE")
	case v.reason == "":
		return errors.New("--reason is missing: the holder gets it as the cause of its loss")
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
			return errors.Join(f.lostError(err, "the file is removed"), removing)
		}
		if removing != nil {
			return fmt.Errorf("%s is released; its file is not removed: %w", f.reservedText(), removing)
		}
		doc := struct {
			Items []itemDoc `json:"released"`
		}{mapSlice(f.Items, newItemDoc)}
		return v.app.print(doc, func(w io.Writer) {
			fmt.Fprintf(w, "%s: released; %s is removed\n", f.reservedText(), visible.Line(f.path))
		})
	})
}

func (v *releaseCommand) release(ctx context.Context, c *client.Client, name string) error {
	token := client.Token(v.token)
	if token == 0 {
		lock, err := c.Get(ctx, name, showLimitDefault)
		if err != nil {
			return err
		}
		if len(lock.Held) == 0 {
			return &exitError{exitTargetNotFound, fmt.Errorf("nobody holds %s; nothing was done", name)}
		}
		for _, t := range lock.Held {
			token = max(token, t.Token)
		}
		if err := v.confirm(ctx, newDetailDoc(lock)); err != nil {
			return err
		}
	}
	ended, err := c.ForceRelease(ctx, name, token, v.reason)
	if err != nil {
		return err
	}
	if len(ended) == 0 {
		return &exitError{exitTargetNotFound, fmt.Errorf("nobody holds %s with a token up to %d; nothing was done", name, token)}
	}
	type ref struct {
		Session uint64 `json:"session,string"`
		Ticket  uint64 `json:"ticket,string"`
	}
	doc := struct {
		Ended []ref `json:"ended"`
	}{mapSlice(ended, func(t client.TicketRef) ref { return ref{t.Session, t.Ticket} })}
	return v.app.print(doc, func(w io.Writer) {
		for _, t := range ended {
			fmt.Fprintf(w, "released: session %d does not hold %s any more\n", t.Session, visible.Line(name))
		}
	})
}

// confirm shows the holders and has a person decide.
func (v *releaseCommand) confirm(ctx context.Context, lock detailDoc) error {
	lock.Queue = nil // it is about the holders
	lock.write(v.app.stderr)
	fmt.Fprintf(v.app.stderr, "\nRelease it from %d holder(s)? [y/N] ", len(lock.Held))
	lines := make(chan string, 1)
	go func() { // not waited for: nothing can end a read of standard input but the end of the program
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
	return errors.New("nothing was done, since the answer was not yes; scripts give --token")
}
