package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"zamok/client"
	"zamok/session/visible"
)

// showCommand is `zamok show`.
type showCommand struct {
	requestFlags
	limit int
}

// showLimitDefault is how many holders and waiters are shown by default.
const showLimitDefault = 100

func newShow(a *app) *cobra.Command {
	v := &showCommand{}
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "show the holders and waiters of a lock",
		Long: `Shows the holders and waiters of a lock in order, and what each waiter waits for.

Times are measured by the cluster clock, which stands still while there is no leader. For events before the
start of the leader's process and before the snapshot it started from, only the order is known; their age is
shown as a dash. LEASE is the remaining lease if no further renewal arrives. A lock is reserved if the session
of its holder has never had a stream, such as one of ` + "`zamok acquire`" + `: until its lease ends, which is estimated by
this machine's clock.`,
		Example: "  zamok show account/200",
		GroupID: groupInspect,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return v.run(cmd, func(ctx context.Context, c *client.Client) error { return v.show(ctx, c, args[0]) })
		},
	}
	v.register(a, cmd, requestTimeoutDefault)
	cmd.Flags().IntVar(&v.limit, "limit", showLimitDefault, "maximum number of holders and of waiters")
	return cmd
}

// detailDoc is all about one lock.
type detailDoc struct {
	lockDoc
	Held  []ticketDoc `json:"held"`
	Queue []ticketDoc `json:"queue"`
	Stamp stampDoc    `json:"stamp"`
}

func newDetailDoc(d *client.LockDetail) detailDoc {
	now := d.Stamp.Time
	ticket := func(t client.TicketInfo) ticketDoc { return newTicketDoc(t, now) }
	return detailDoc{newLockDoc(d.LockInfo, now), mapSlice(d.Held, ticket), mapSlice(d.Queue, ticket), newStampDoc(d.Stamp)}
}

func (v *showCommand) show(ctx context.Context, c *client.Client, name string) error {
	lock, err := c.Get(ctx, name, v.limit)
	if err != nil {
		return err
	}
	doc := newDetailDoc(lock)
	return v.app.print(doc, func(w io.Writer) { doc.write(w) })
}

func (d *detailDoc) write(w io.Writer) {
	switch free := d.Holders == 0 && d.Waiters == 0; {
	case free && d.HoldOff != "":
		fmt.Fprintf(w, "%s is free, but no lock is granted for another %s: a backup was restored.\n", visible.Word(d.Name), d.HoldOff)
		return
	case free && d.Delay == "":
		fmt.Fprintf(w, "%s is free.\n", visible.Word(d.Name))
		return
	}
	fmt.Fprintf(w, "%s (%s): held by %d, %d waiting", visible.Word(d.Name), d.kindText(), d.Holders, d.Waiters)
	switch {
	case d.HoldOff != "":
		fmt.Fprintf(w, "; no lock is granted for another %s: a backup was restored", d.HoldOff)
	case d.Delay != "":
		fmt.Fprintf(w, ", closed for %s: its last holder was lost", d.Delay)
	}
	fmt.Fprintln(w)
	if len(d.Held) > 0 {
		fmt.Fprintln(w)
		d.writeHolders(w)
	}
	if len(d.Queue) == 0 {
		return
	}
	rows := [][]string{{"NEXT", "MODE", "WAITS", "GIVES UP", "SESSION", "TICKET", "WHO", "FROM", "WAITS FOR"}}
	for i, t := range d.Queue {
		rows = append(rows, []string{
			strconv.Itoa(i + 1), t.modeOn(d.Name), firstNonEmpty(t.Waited), firstNonEmpty(t.WaitLeft), strconv.FormatUint(t.Session, 10),
			strconv.FormatUint(t.Ticket, 10), t.displayName(), firstNonEmpty(t.Identity), d.waitReasons(t),
		})
	}
	fmt.Fprintln(w)
	table(w, rows)
	if more := d.Waiters - len(d.Queue); more > 0 {
		fmt.Fprintf(w, "and %d more; --limit shows more of them\n", more)
	}
}

func (d *detailDoc) writeHolders(w io.Writer) {
	rows := [][]string{{"HELD", "TOKEN", "FOR", "LEASE", "SESSION", "TICKET", "WHO", "FROM"}}
	limited := false
	for _, t := range d.Held {
		limited = limited || t.HoldLeft != ""
		rows = append(rows, []string{
			t.modeOn(d.Name), strconv.FormatUint(t.Token, 10), firstNonEmpty(t.Held), firstNonEmpty(t.LeaseLeft), strconv.FormatUint(t.Session, 10),
			strconv.FormatUint(t.Ticket, 10), t.displayName(), firstNonEmpty(t.Identity),
		})
	}
	if limited {
		rows[0] = append(rows[0], "AT MOST")
		for i, t := range d.Held {
			rows[i+1] = append(rows[i+1], firstNonEmpty(t.HoldLeft))
		}
	}
	table(w, rows)
	if more := d.Holders - len(d.Held); more > 0 {
		fmt.Fprintf(w, "and %d more; --limit shows more of them\n", more)
	}
	for _, t := range d.Held {
		if t.Reserved {
			fmt.Fprintf(w, "Reserved until %s by session %d, unless renewed.\n", t.reservedUntil, t.Session)
		}
	}
}

// reasonsMax is how many reasons are given for one waiter.
const reasonsMax = 2

// waitReasons lists what a waiter waits for.
func (d *detailDoc) waitReasons(t ticketDoc) string {
	var reasons []string
	for i, b := range t.Blockers {
		if i == reasonsMax {
			reasons = append(reasons, fmt.Sprintf("and %d more", len(t.Blockers)-i))
			break
		}
		reasons = append(reasons, b.text(d.Name))
	}
	return firstNonEmpty(strings.Join(reasons, "; "))
}

// text is what a blocker does, and at which lock if that is not the one shown.
func (b blockerDoc) text(shown string) string {
	at := ""
	if b.Name != shown {
		at = " at " + visible.Word(b.Name)
	}
	switch b.By {
	case "hold-off":
		return fmt.Sprintf("the restored backup, %s left", b.Remaining)
	case "delay":
		return fmt.Sprintf("a delay%s, %s left", at, b.Remaining)
	case "waiter":
		return fmt.Sprintf("session %d, ahead%s", b.Session, at)
	}
	return fmt.Sprintf("session %d, the holder%s", b.Session, at)
}
