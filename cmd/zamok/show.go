package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"zamok/api/view"
	"zamok/api/visible"
	"zamok/client"
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

Times are measured by the cluster clock, which stands still while there is no leader. For events
before the start of the leader's process and before the snapshot it started from, only the order is
known; their age is shown as a dash. LEASE is the remaining lease if no further renewal arrives. A
lock is reserved if the session of its holder has never had a stream, as with
` + "`zamok acquire`" + ` or over HTTP. The end of that lease is estimated by this machine's
clock.`,
		Example: "  zamok show account/200",
		GroupID: groupInspect,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return v.run(cmd, func(ctx context.Context, c *client.Client) error {
				return v.show(ctx, c, args[0])
			})
		},
	}
	v.register(a, cmd, requestTimeoutDefault)
	cmd.Flags().IntVar(&v.limit, "limit", showLimitDefault,
		"maximum `number` of holders and of waiters")
	return cmd
}

func (v *showCommand) show(ctx context.Context, c *client.Client, name string) error {
	lock, err := getLock(ctx, c, name, v.limit)
	if err != nil {
		return err
	}
	return v.app.print(lock, func(w io.Writer) { writeLock(w, lock) })
}

func writeLock(w io.Writer, d *view.Lock) {
	switch free := d.Holders == 0 && d.Waiters == 0; {
	case free && d.HoldOff != nil:
		fmt.Fprintf(w,
			"%s is free, but no lock is granted for another %s: a backup was restored.\n",
			visible.Word(d.Name), cell(d.HoldOff))
		return
	case free && d.Delay == nil:
		fmt.Fprintf(w, "%s is free.\n", visible.Word(d.Name))
		return
	}
	fmt.Fprintf(w, "%s (%s): held by %d, %d waiting", visible.Word(d.Name), kindText(d.LockBrief),
		d.Holders, d.Waiters)
	switch {
	case d.HoldOff != nil:
		fmt.Fprintf(w, "; no lock is granted for another %s: a backup was restored",
			cell(d.HoldOff))
	case d.Delay != nil:
		fmt.Fprintf(w, "; closed for another %s by the lock delay, since its last holder was lost",
			cell(d.Delay))
	}
	fmt.Fprintln(w)
	if len(d.Holding) > 0 {
		fmt.Fprintln(w)
		writeHolders(w, d)
	}
	if len(d.Queue) == 0 {
		return
	}
	rows := [][]string{{"NEXT", "MODE", "WAITED", "WAIT LEFT", "SESSION", "TICKET", "WHO",
		"IDENTITY", "WAITS FOR"}}
	for i, t := range d.Queue {
		rows = append(rows, []string{
			strconv.Itoa(i + 1), modeOn(t, d.Name), firstNonEmpty(cell(t.Waited)),
			firstNonEmpty(cell(t.WaitLeft)), fmt.Sprint(t.Session),
			fmt.Sprint(t.Ticket), displayName(t), firstNonEmpty(t.Identity), waitReasons(t, d.Name),
		})
	}
	fmt.Fprintln(w)
	table(w, rows)
	if more := int(d.Waiters) - len(d.Queue); more > 0 {
		fmt.Fprintf(w, "and %d more; --limit shows more of them\n", more)
	}
}

func writeHolders(w io.Writer, d *view.Lock) {
	rows := [][]string{{"MODE", "TOKEN", "HELD", "LEASE", "SESSION", "TICKET", "WHO", "IDENTITY"}}
	bounded := false
	for _, t := range d.Holding {
		bounded = bounded || t.HoldLeft != nil
		rows = append(rows, []string{
			modeOn(t, d.Name), fmt.Sprint(t.Token), firstNonEmpty(cell(t.Held)), cell(&t.LeaseLeft),
			fmt.Sprint(t.Session),
			fmt.Sprint(t.Ticket), displayName(t), firstNonEmpty(t.Identity),
		})
	}
	if bounded {
		rows[0] = append(rows[0], "HOLD LEFT")
		for i, t := range d.Holding {
			rows[i+1] = append(rows[i+1], firstNonEmpty(cell(t.HoldLeft)))
		}
	}
	table(w, rows)
	if more := int(d.Holders) - len(d.Holding); more > 0 {
		fmt.Fprintf(w, "and %d more; --limit shows more of them\n", more)
	}
	for _, t := range d.Holding {
		if t.Reserved {
			fmt.Fprintf(w, "Reserved until %s by session %d, unless renewed.\n",
				timeOfDayText(&t.LeaseLeft), t.Session)
		}
	}
}

// reasonsMax is how many reasons are given for one waiter.
const reasonsMax = 2

// waitReasons lists what a waiter waits for at the lock that is shown, and at others.
func waitReasons(t view.Ticket, shown string) string {
	var reasons []string
	for i, b := range t.Blockers {
		if i == reasonsMax {
			reasons = append(reasons, fmt.Sprintf("and %d more", len(t.Blockers)-i))
			break
		}
		reasons = append(reasons, blockerText(b, shown))
	}
	return firstNonEmpty(strings.Join(reasons, "; "))
}

// blockerText describes a blocker, with its lock if that is not the one shown.
func blockerText(b view.Blocker, shown string) string {
	at := ""
	if b.Name != shown {
		at = " at " + visible.Word(b.Name)
	}
	switch b.By {
	case "hold_off":
		return fmt.Sprintf("the restore hold-off, %s left", cell(&b.Left))
	case "delay":
		return fmt.Sprintf("the lock delay%s, %s left", at, cell(&b.Left))
	case "waiter":
		return fmt.Sprintf("session %d, ahead%s", b.Session, at)
	}
	return fmt.Sprintf("session %d, the holder%s", b.Session, at)
}
