package main

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"zamok/client"
)

// lsCommand is `zamok ls`.
type lsCommand struct {
	requestFlags
	after string
	limit int
}

// pageSizeMax is how much of a list is asked for at once.
const pageSizeMax = 1000

func newLs(a *app) *cobra.Command {
	v := &lsCommand{}
	cmd := &cobra.Command{
		Use:   "ls [PREFIX]",
		Short: "list locks in use by name",
		Long: `Lists locks that are held, waited for or in their lock delay, ordered by name. RESERVED UNTIL is the time on
this machine's clock at which the reservation of the first holder ends; see ` + "`zamok show --help`" + `.`,
		Example: "  zamok ls\n  zamok ls account/ -o json",
		GroupID: groupInspect,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if v.limit < 0 {
				return &usageError{cmd.CommandPath(), fmt.Errorf("--limit is %d: it can't be below 0", v.limit)}
			}
			prefix := ""
			if len(args) > 0 {
				prefix = args[0]
			}
			return v.run(cmd, func(ctx context.Context, c *client.Client) error { return v.list(ctx, c, prefix) })
		},
	}
	v.register(a, cmd, requestTimeoutDefault)
	cmd.Flags().StringVar(&v.after, "after", "", "start after this name")
	cmd.Flags().IntVar(&v.limit, "limit", pageSizeMax, "maximum number of results; 0 = all")
	return cmd
}

func (v *lsCommand) list(ctx context.Context, c *client.Client, prefix string) error {
	var locks []client.LockInfo
	stamp := client.Stamp{}
	more := true
	for after := v.after; more; {
		page := pageSizeMax
		if v.limit > 0 {
			page = min(page, v.limit+1-len(locks)) // one more than is shown reports whether there is more
		}
		batch, at, err := c.List(ctx, prefix, after, page)
		if err != nil {
			return err
		}
		if stamp == (client.Stamp{}) {
			stamp = at // a watch from the first page on shows what changed since
		}
		locks = append(locks, batch...)
		if more = len(batch) == page; v.limit > 0 && len(locks) > v.limit {
			locks = locks[:v.limit]
			break
		}
		if more {
			after = batch[len(batch)-1].Name
		}
	}
	doc := struct {
		Locks []lockDoc `json:"locks"`
		More  bool      `json:"more"`
		Stamp stampDoc  `json:"stamp"`
	}{mapSlice(locks, func(l client.LockInfo) lockDoc { return newLockDoc(l, stamp.Time) }), more, newStampDoc(stamp)}
	return v.app.print(doc, func(w io.Writer) {
		if len(locks) == 0 {
			filter := ""
			if prefix != "" {
				filter = fmt.Sprintf(" whose name begins with %q", prefix)
			}
			fmt.Fprintf(w, "No lock%s is in use.\n", filter)
			return
		}
		rows := [][]string{{"NAME", "KIND", "HELD BY", "WAITING", "DELAY"}}
		reserved := false
		for _, l := range doc.Locks {
			reserved = reserved || l.Reserved != ""
			rows = append(rows, []string{l.Name, l.kindText(), strconv.Itoa(l.Holders), strconv.Itoa(l.Waiters), firstNonEmpty(l.Delay)})
		}
		if reserved {
			rows[0] = append(rows[0], "RESERVED UNTIL")
			for i, l := range doc.Locks {
				rows[i+1] = append(rows[i+1], firstNonEmpty(l.reservedUntil))
			}
		}
		table(w, rows)
		if more {
			fmt.Fprintf(w, "There are more: continue with --after %s; --limit 0 lists all.\n", shellQuote(locks[len(locks)-1].Name))
		}
	})
}
