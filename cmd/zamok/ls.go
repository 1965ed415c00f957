package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"zamok/api/view"
	"zamok/api/zamokpb"
	"zamok/client"
	"zamok/client/call"
)

// lsCommand is `zamok ls`.
type lsCommand struct {
	requestFlags
	after string
	limit int
}

// pageSizeMax is how much of a list is requested at once.
const pageSizeMax = 1000

func newLs(a *app) *cobra.Command {
	v := &lsCommand{}
	cmd := &cobra.Command{
		Use:   "ls [PREFIX]",
		Short: "list locks in use by name",
		Long: `Lists locks that are held, waited for or in their lock delay, ordered by name.
RESERVED UNTIL is the time on this machine's clock at which the reservation of the first holder
ends; see ` + "`zamok show --help`" + `.`,
		Example: "  zamok ls\n  zamok ls account/ -o json",
		GroupID: groupInspect,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if v.limit < 0 {
				return &usageError{cmd.CommandPath(),
					fmt.Errorf("--limit is %d: it must not be below 0", v.limit)}
			}
			prefix := ""
			if len(args) > 0 {
				prefix = args[0]
			}
			return v.run(cmd, func(ctx context.Context, c *client.Client) error {
				return v.list(ctx, c, prefix)
			})
		},
	}
	v.register(a, cmd, requestTimeoutDefault)
	cmd.Flags().StringVar(&v.after, "after", "", "list only names after this `name`")
	cmd.Flags().IntVar(&v.limit, "limit", pageSizeMax, "maximum `number` of results; 0: all")
	return cmd
}

func (v *lsCommand) list(ctx context.Context, c *client.Client, prefix string) error {
	var locks []*zamokpb.LockSummary
	var stamp *zamokpb.Stamp
	more := true
	for after := v.after; more; {
		page := pageSizeMax
		if v.limit > 0 {
			// one more than is shown, to know whether there are more
			page = min(page, v.limit+1-len(locks))
		}
		request := &zamokpb.ListRequest{Prefix: prefix, After: after, Limit: uint32(page)}
		r, _, err := call.Leader(ctx, c.Calls(), call.Reads, call.Node.List, request)
		if err != nil {
			return err
		}
		if stamp == nil {
			stamp = r.GetStamp() // a watch from the first page on shows what changed since
		}
		locks = append(locks, r.GetLocks()...)
		if more = len(r.GetLocks()) == page; v.limit > 0 && len(locks) > v.limit {
			locks = locks[:v.limit]
			break
		}
		if more {
			after = locks[len(locks)-1].Name
		}
	}
	doc := view.NewLocks(locks, stamp, more)
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
			reserved = reserved || l.ReservedLeft != nil
			rows = append(rows, []string{l.Name, kindText(l), fmt.Sprint(l.Holders),
				fmt.Sprint(l.Waiters), firstNonEmpty(cell(l.Delay))})
		}
		if reserved {
			rows[0] = append(rows[0], "RESERVED UNTIL")
			for i, l := range doc.Locks {
				rows[i+1] = append(rows[i+1], firstNonEmpty(timeOfDayText(l.ReservedLeft)))
			}
		}
		table(w, rows)
		if more {
			fmt.Fprintf(w, "There are more: continue with --after %s; --limit 0 lists all.\n",
				shellQuote(doc.Next))
		}
	})
}
