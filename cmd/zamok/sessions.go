package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"zamok/api/view"
	"zamok/client"
	"zamok/client/admin"
	"zamok/client/call"
)

// sessionsCommand is `zamok sessions`.
type sessionsCommand struct {
	requestFlags
	after uint64
	limit int
	by    string
}

func newSessions(a *app) *cobra.Command {
	v := &sessionsCommand{}
	cmd := &cobra.Command{
		Use:   "sessions",
		Short: "list live sessions",
		Long: `Lists live sessions, oldest first. LEASE is the remaining lease if no further renewal
arrives. TICKETS counts acquisitions that wait or hold.

--by identity lists the usage of each identity instead: its sessions, tickets and bytes. USED is the
percentage of the quota that it is closest to (see zamok settings); the highest come first. With
access rules this needs the verb operate.`,
		Example: "  zamok sessions\n  zamok sessions --by identity --limit 10",
		GroupID: groupInspect,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if v.limit < 1 {
				return &usageError{cmd.CommandPath(),
					fmt.Errorf("--limit is %d: it must be above 0", v.limit)}
			}
			switch {
			case v.by == "":
				return v.run(cmd, v.list)
			case v.by != "identity":
				return &usageError{cmd.CommandPath(),
					fmt.Errorf("--by is %q: it must be identity", v.by)}
			case cmd.Flags().Changed("after"):
				return &usageError{cmd.CommandPath(),
					errors.New("--after is the id of a session, but --by identity lists no " +
						"sessions: use --limit")}
			}
			return v.run(cmd, v.listIdentities)
		},
	}
	v.register(a, cmd, requestTimeoutDefault)
	cmd.Flags().Uint64Var(&v.after, "after", 0, "list only sessions with an id above this `id`")
	cmd.Flags().StringVar(&v.by, "by", "", "list the usage by `identity` instead")
	cmd.Flags().IntVar(&v.limit, "limit", pageSizeMax, "maximum `number` of results")
	return cmd
}

func (v *sessionsCommand) list(ctx context.Context, c *client.Client) error {
	sessions, stamp, err := call.Sessions(ctx, c.Calls(), v.after, v.limit)
	if err != nil {
		return err
	}
	doc := view.NewSessions(sessions, stamp, len(sessions) == v.limit)
	return v.app.print(doc, func(w io.Writer) {
		if len(sessions) == 0 {
			fmt.Fprintln(w, "There are no live sessions.")
			return
		}
		rows := [][]string{{"SESSION", "WHO", "IDENTITY", "AGE", "TTL", "LEASE", "TICKETS"}}
		for _, s := range doc.Sessions {
			rows = append(rows, []string{
				fmt.Sprint(s.Session), firstNonEmpty(s.Label), firstNonEmpty(s.Identity),
				cell(&s.Age), time.Duration(s.TTL).String(), cell(&s.LeaseLeft),
				fmt.Sprint(s.Tickets),
			})
		}
		table(w, rows)
		if doc.Next != 0 {
			fmt.Fprintf(w, "There may be more: continue with --after %d.\n", doc.Next)
		}
	})
}

// identityDoc is what an identity uses.
type identityDoc struct {
	Identity string `json:"identity"`
	quotasDoc
	Used uint64 `json:"used_percent"` // of the quota that it is closest to
}

func (v *sessionsCommand) listIdentities(ctx context.Context, c *client.Client) error {
	settings, identities, err := admin.New(c).Usage(ctx, min(v.limit, pageSizeMax))
	if err != nil {
		return err
	}
	quota := settings.Quotas.OfIdentity()
	doc := struct {
		Identities []identityDoc `json:"identities"`
		Quota      quotasDoc     `json:"quota"` // of each identity
		Used       quotasDoc     `json:"used"`  // by all clients together
	}{
		mapSlice(identities, func(u admin.IdentityUsage) identityDoc {
			used := max(u.Used.Sessions*100/quota.Sessions, u.Used.Tickets*100/quota.Tickets,
				u.Used.Bytes*100/quota.Bytes)
			return identityDoc{u.Identity, quotasDoc(u.Used), used}
		}),
		quotasDoc(quota), quotasDoc(settings.Used),
	}
	return v.app.print(doc, func(w io.Writer) {
		if len(doc.Identities) == 0 {
			fmt.Fprintln(w, "There are no live sessions.")
			return
		}
		rows := [][]string{{"IDENTITY", "SESSIONS", "TICKETS", "BYTES", "USED"}}
		for _, u := range doc.Identities {
			rows = append(rows, []string{
				firstNonEmpty(u.Identity), strconv.FormatUint(u.Sessions, 10),
				strconv.FormatUint(u.Tickets, 10), strconv.FormatUint(u.Bytes, 10),
				strconv.FormatUint(u.Used, 10) + "%",
			})
		}
		table(w, rows)
		fmt.Fprintf(w, "One identity may have %d sessions, %d tickets and %d bytes.\n",
			quota.Sessions, quota.Tickets, quota.Bytes)
	})
}
