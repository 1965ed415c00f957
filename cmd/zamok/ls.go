package main

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"zamok/client"
)

// lsVerb is `zamok ls`.
type lsVerb struct {
	asking
	after string
	limit int
}

// pageMax is how much of a list is asked for at once.
const pageMax = 1000

func newLs(a *app) *cobra.Command {
	v := &lsVerb{}
	cmd := &cobra.Command{
		Use:     "ls [PREFIX]",
		Short:   "list locks in use by name",
		Long:    "Lists locks that are held, waited for or in their lock delay, ordered by name.",
		Example: "  zamok ls\n  zamok ls account/ -o json",
		GroupID: groupLook,
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
	v.flags(a, cmd, askPatience)
	cmd.Flags().StringVar(&v.after, "after", "", "start after this name")
	cmd.Flags().IntVar(&v.limit, "limit", pageMax, "maximum number of results; 0 = all")
	return cmd
}

func (v *lsVerb) list(ctx context.Context, c *client.Client, prefix string) error {
	var locks []client.LockInfo
	stamp := client.Stamp{}
	more := true
	for after := v.after; more; {
		page := pageMax
		if v.limit > 0 {
			page = min(page, v.limit+1-len(locks)) // one more than is shown tells whether there is more
		}
		some, at, err := c.List(ctx, prefix, after, page)
		if err != nil {
			return err
		}
		if stamp == (client.Stamp{}) {
			stamp = at // what changed since is told by a watch from the first page on
		}
		locks = append(locks, some...)
		if more = len(some) == page; v.limit > 0 && len(locks) > v.limit {
			locks = locks[:v.limit]
			break
		}
		if more {
			after = some[len(some)-1].Name
		}
	}
	doc := struct {
		Locks []lockDoc `json:"locks"`
		More  bool      `json:"more"`
		Stamp stampDoc  `json:"stamp"`
	}{each(locks, func(l client.LockInfo) lockDoc { return newLockDoc(l, stamp.Time) }), more, newStampDoc(stamp)}
	return v.app.print(doc, func(w io.Writer) {
		if len(locks) == 0 {
			where := ""
			if prefix != "" {
				where = fmt.Sprintf(" whose name begins with %q", prefix)
			}
			fmt.Fprintf(w, "No lock%s is in use.\n", where)
			return
		}
		rows := [][]string{{"NAME", "KIND", "HELD BY", "WAITING", "DELAY"}}
		for _, l := range doc.Locks {
			rows = append(rows, []string{l.Name, l.kind(), strconv.Itoa(l.Holders), strconv.Itoa(l.Waiters), firstOf(l.Delay)})
		}
		table(w, rows)
		if more {
			fmt.Fprintf(w, "There are more: --after %s goes on, --limit 0 lists all.\n", shellWord(locks[len(locks)-1].Name))
		}
	})
}
