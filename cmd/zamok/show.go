package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"zamok/client"
)

// showVerb is `zamok show`.
type showVerb struct {
	asking
	limit int
}

// showMost is how many holders and waiters are shown if nobody says otherwise.
const showMost = 100

func newShow(a *app) *cobra.Command {
	v := &showVerb{}
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "show the holders and waiters of a lock",
		Long: `Shows the holders and waiters of a lock in order, and what each waiter waits for.

Times are measured by the cluster clock, which stands still while there is no leader. For events before the
start of the leader's process and before the snapshot it started from, only the order is known; their age is
shown as a dash. LEASE is the remaining lease if no further renewal arrives.`,
		Example: "  zamok show account/200",
		GroupID: groupLook,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return v.run(cmd, func(ctx context.Context, c *client.Client) error { return v.show(ctx, c, args[0]) })
		},
	}
	v.flags(a, cmd, askPatience)
	cmd.Flags().IntVar(&v.limit, "limit", showMost, "maximum number of holders and of waiters")
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
	return detailDoc{newLockDoc(d.LockInfo, now), each(d.Held, ticket), each(d.Queue, ticket), newStampDoc(d.Stamp)}
}

func (v *showVerb) show(ctx context.Context, c *client.Client, name string) error {
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
		fmt.Fprintf(w, "%s is free, but no lock is granted for another %s: a backup was restored.\n", oneLine(d.Name), d.HoldOff)
		return
	case free && d.Delay == "":
		fmt.Fprintf(w, "%s is free.\n", oneLine(d.Name))
		return
	}
	fmt.Fprintf(w, "%s (%s): held by %d, %d waiting", oneLine(d.Name), d.kind(), d.Holders, d.Waiters)
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
	rows := [][]string{{"NEXT", "MODE", "WAITS", "GIVES UP", "SESSION", "TICKET", "WHO", "WAITS FOR"}}
	for i, t := range d.Queue {
		rows = append(rows, []string{
			strconv.Itoa(i + 1), t.at(d.Name), firstOf(t.Waited), firstOf(t.WaitLeft), strconv.FormatUint(t.Session, 10),
			strconv.FormatUint(t.Ticket, 10), t.who(), d.why(t),
		})
	}
	fmt.Fprintln(w)
	table(w, rows)
	if more := d.Waiters - len(d.Queue); more > 0 {
		fmt.Fprintf(w, "and %d more; --limit shows more of them\n", more)
	}
}

func (d *detailDoc) writeHolders(w io.Writer) {
	rows := [][]string{{"HELD", "TOKEN", "FOR", "LEASE", "SESSION", "TICKET", "WHO"}}
	limited := false
	for _, t := range d.Held {
		limited = limited || t.HoldLeft != ""
		rows = append(rows, []string{
			t.at(d.Name), strconv.FormatUint(t.Token, 10), firstOf(t.Held), firstOf(t.LeaseLeft), strconv.FormatUint(t.Session, 10),
			strconv.FormatUint(t.Ticket, 10), t.who(),
		})
	}
	if limited {
		rows[0] = append(rows[0], "AT MOST")
		for i, t := range d.Held {
			rows[i+1] = append(rows[i+1], firstOf(t.HoldLeft))
		}
	}
	table(w, rows)
	if more := d.Holders - len(d.Held); more > 0 {
		fmt.Fprintf(w, "and %d more; --limit shows more of them\n", more)
	}
}

// whyMost is how many reasons are given for one waiter.
const whyMost = 2

// why says what a waiter waits for.
func (d *detailDoc) why(t ticketDoc) string {
	var reasons []string
	for i, b := range t.Blockers {
		if i == whyMost {
			reasons = append(reasons, fmt.Sprintf("and %d more", len(t.Blockers)-i))
			break
		}
		reasons = append(reasons, b.reason(d.Name))
	}
	return firstOf(strings.Join(reasons, "; "))
}

// reason says what a blocker does, at which lock if that is not the one that is shown.
func (b blockerDoc) reason(shown string) string {
	at := ""
	if b.Name != shown {
		at = " at " + b.Name
	}
	switch b.By {
	case "hold-off":
		return fmt.Sprintf("the restored backup, %s left", b.Left)
	case "delay":
		return fmt.Sprintf("a delay%s, %s left", at, b.Left)
	case "waiter":
		return fmt.Sprintf("session %d, ahead%s", b.Session, at)
	}
	return fmt.Sprintf("session %d, the holder%s", b.Session, at)
}
