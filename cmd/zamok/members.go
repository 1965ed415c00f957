package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"zamok/api/view"
	"zamok/api/zamokpb"
	"zamok/client"
	"zamok/client/call"
)

func roleText(m view.Member) string {
	switch {
	case m.Leader:
		return "leader"
	case m.Voter:
		return "voter"
	}
	return "learner" // it has no vote yet
}

func behindText(m view.Member) string {
	if m.Behind == nil {
		return "-"
	}
	return fmt.Sprint(*m.Behind)
}

// unreachableAfter is the time without contact to the leader after which a node is shown as
// unreachable. The leader contacts each node ten times in an election timeout.
const unreachableAfter = 3 * time.Second

// lastContactText is the time since the leader's last contact with a node.
func lastContactText(m view.Member) string {
	switch {
	case m.LastContact == nil:
		return "-"
	case !unreachable(m):
		return "now"
	}
	return time.Duration(*m.LastContact).Truncate(time.Second).String()
}

func unreachable(m view.Member) bool {
	return m.LastContact != nil && time.Duration(*m.LastContact) >= unreachableAfter
}

func diskText(m view.Member) string {
	switch {
	case m.DiskLow:
		return bytesText(uint64(m.FreeBytes)) + ", low"
	case m.FreeBytes == 0: // not announced yet, or its data is in memory
		return "-"
	}
	return bytesText(uint64(m.FreeBytes))
}

// writeMembers fits into a terminal of 80 columns, with addresses like 127.0.0.1:5750.
func writeMembers(w io.Writer, d *view.Members) {
	rows := [][]string{{"ID", "ROLE", "CONTACT", "BEHIND", "CLIENTS AT", "PEERS AT", "DISK FREE",
		"VERSION"}}
	for _, m := range d.Members {
		rows = append(rows, []string{m.ID, roleText(m), lastContactText(m), behindText(m),
			firstNonEmpty(m.Client), m.Peer, diskText(m), firstNonEmpty(m.Version)})
	}
	table(w, rows)
	for _, m := range d.Members {
		if unreachable(m) {
			fmt.Fprintf(w, "\n%s: no contact for %v. Is it running? Can the leader reach %s?\n",
				m.ID, lastContactText(m), m.Peer)
		}
	}
	fmt.Fprintf(w, "\nThe cluster's id is %s.\nIts election timeout is %s.\n", d.Cluster,
		time.Duration(d.ElectionTimeout))
	if d.ShortTTLs > 0 {
		fmt.Fprintf(w,
			"%d sessions have a ttl below four election timeouts: most failovers end them.\n",
			d.ShortTTLs)
	}
	if d.HoldOff > 0 {
		fmt.Fprintf(w, "No lock is granted for another %s: a backup was restored.\n",
			cell(&d.HoldOff))
	}
}

func newMembers(a *app) *cobra.Command {
	q := &requestFlags{}
	cmd := &cobra.Command{
		Use:   "members",
		Short: "list the members of the cluster",
		Long: `Lists the members of the cluster with what each has announced, and the cluster id. A
learner has no vote yet because it has not caught up. CONTACT is the time since the leader's last
contact with a node, BEHIND the number of log entries that the node lacked then. HTTP addresses are
part of the output of -o json.

All endpoints are queried. An endpoint of another cluster is an error; one that does not respond is
not.`,
		GroupID: groupOperate,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return q.run(cmd, func(ctx context.Context, c *client.Client) error {
				r, _, err := call.Leader(ctx, c.Calls(), call.Surveys, call.Node.Members,
					&zamokpb.MembersRequest{})
				if err != nil {
					return err
				}
				doc := view.NewMembers(r)
				return a.print(doc, func(w io.Writer) { writeMembers(w, doc) })
			})
		},
	}
	q.register(a, cmd, requestTimeoutDefault)
	return cmd
}

// bytesText is a number of bytes for people: 1.5 GiB.
func bytesText(n uint64) string {
	unit, value := 0, float64(n)
	units := [...]string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	for value >= 1024 && unit < len(units)-1 {
		unit, value = unit+1, value/1024
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", value, units[unit])
}
