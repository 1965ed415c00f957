package main

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"zamok/client"
)

// sessionsCommand is `zamok sessions`.
type sessionsCommand struct {
	requestFlags
	after uint64
	limit int
}

func newSessions(a *app) *cobra.Command {
	v := &sessionsCommand{}
	cmd := &cobra.Command{
		Use:   "sessions",
		Short: "list live sessions",
		Long: `Lists live sessions, oldest first. LEASE is the remaining lease if no further renewal arrives. LOCKS
counts held and awaited acquisitions.`,
		GroupID: groupInspect,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if v.limit < 1 {
				return &usageError{cmd.CommandPath(), fmt.Errorf("--limit is %d: it must be above 0", v.limit)}
			}
			return v.run(cmd, v.list)
		},
	}
	v.register(a, cmd, requestTimeoutDefault)
	cmd.Flags().Uint64Var(&v.after, "after", 0, "start after this session")
	cmd.Flags().IntVar(&v.limit, "limit", pageSizeMax, "maximum number of results")
	return cmd
}

func (v *sessionsCommand) list(ctx context.Context, c *client.Client) error {
	sessions, stamp, err := c.Sessions(ctx, v.after, v.limit)
	if err != nil {
		return err
	}
	doc := struct {
		Sessions []sessionDoc `json:"sessions"`
		More     bool         `json:"more"` // perhaps
		Stamp    stampDoc     `json:"stamp"`
	}{
		mapSlice(sessions, func(s client.SessionInfo) sessionDoc { return newSessionDoc(s, stamp.Time) }),
		len(sessions) == v.limit, newStampDoc(stamp),
	}
	return v.app.print(doc, func(w io.Writer) {
		if len(sessions) == 0 {
			fmt.Fprintln(w, "No session lives.")
			return
		}
		rows := [][]string{{"SESSION", "WHO", "FROM", "AGE", "TTL", "LEASE", "LOCKS"}}
		for _, s := range doc.Sessions {
			rows = append(rows, []string{
				strconv.FormatUint(s.Session, 10), firstNonEmpty(s.Label), firstNonEmpty(s.Identity), s.Age, s.TTL, s.LeaseLeft, strconv.Itoa(s.Tickets),
			})
		}
		table(w, rows)
		if doc.More {
			fmt.Fprintf(w, "There may be more: continue with --after %d.\n", sessions[len(sessions)-1].Session)
		}
	})
}
