package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"zamok/client"
)

type memberDoc struct {
	ID          string `json:"id"`
	Incarnation string `json:"incarnation"`
	Role        string `json:"role"` // leader, voter or learner
	Client      string `json:"client,omitempty"`
	Peer        string `json:"peer"`
	HTTP        string `json:"http,omitempty"`
	Version     string `json:"version,omitempty"`
	FreeBytes   uint64 `json:"free_bytes,string,omitempty"`
	DiskLow     bool   `json:"disk_low"`
	LastContact string `json:"last_contact,omitempty"` // since the leader's last contact with it; "" = the leader itself
	Lag         string `json:"behind,omitempty"`       // "" = the leader itself, or not known

	sinceContact time.Duration
}

func newMemberDoc(m client.Member) memberDoc {
	role := "learner" // it has no vote yet
	switch {
	case m.Leader:
		role = "leader"
	case m.Voter:
		role = "voter"
	}
	doc := memberDoc{ID: m.ID, Incarnation: m.Incarnation, Role: role, Client: m.Client, Peer: m.Peer, HTTP: m.HTTP,
		Version: m.Version, FreeBytes: m.FreeBytes, DiskLow: m.DiskLow, sinceContact: m.LastContact}
	if !m.Leader {
		doc.LastContact = m.LastContact.Round(time.Millisecond).String()
	}
	if m.Behind != nil {
		doc.Lag = strconv.FormatUint(*m.Behind, 10)
	}
	return doc
}

// unreachableAfter is how long the leader must have had no contact with a node that is called silent. It has ten times
// in each election timeout.
const unreachableAfter = 3 * time.Second

// lastContactText is the time since the leader's last contact with a node.
func (m memberDoc) lastContactText() string {
	switch {
	case m.LastContact == "":
		return "-"
	case m.sinceContact < unreachableAfter:
		return "now"
	}
	return m.sinceContact.Truncate(time.Second).String()
}

func (m memberDoc) diskText() string {
	switch {
	case m.DiskLow:
		return bytesText(m.FreeBytes) + ", low"
	case m.FreeBytes == 0: // not announced yet, or its data is in memory
		return "-"
	}
	return bytesText(m.FreeBytes)
}

type membersDoc struct {
	Cluster         string      `json:"cluster"`
	HoldOff         string      `json:"hold_off,omitempty"`   // for how long no lock is granted, after a restore
	ElectionTimeout string      `json:"election_timeout"`     // after how long without a leader nodes elect another
	ShortTTLs       int         `json:"short_ttls,omitempty"` // sessions that most failovers end, since their ttl is below four election timeouts
	Members         []memberDoc `json:"members"`
}

// write fits into a terminal of 80 columns, with addresses like 127.0.0.1:5750.
func (d membersDoc) write(w io.Writer) {
	rows := [][]string{{"ID", "ROLE", "CONTACT", "BEHIND", "CLIENTS AT", "PEERS AT", "DISK FREE", "VERSION"}}
	for _, m := range d.Members {
		rows = append(rows, []string{m.ID, m.Role, m.lastContactText(), firstNonEmpty(m.Lag), firstNonEmpty(m.Client), m.Peer, m.diskText(), firstNonEmpty(m.Version)})
	}
	table(w, rows)
	for _, m := range d.Members {
		if m.sinceContact >= unreachableAfter {
			fmt.Fprintf(w, "\n%s: no contact for %v. Does it run? Can the leader reach %s?\n", m.ID, m.lastContactText(), m.Peer)
		}
	}
	fmt.Fprintf(w, "\nThe cluster's id is %s.\nIts election timeout is %s.\n", d.Cluster, d.ElectionTimeout)
	if d.ShortTTLs > 0 {
		fmt.Fprintf(w, "%d sessions have a ttl below four of them: most failovers end these.\n", d.ShortTTLs)
	}
	if d.HoldOff != "" {
		fmt.Fprintf(w, "No lock is granted for another %s: a backup was restored.\n", d.HoldOff)
	}
}

func newMembers(a *app) *cobra.Command {
	q := &requestFlags{}
	cmd := &cobra.Command{
		Use:   "members",
		Short: "list the members of the cluster",
		Long: `Lists the members of the cluster with what each has announced, and the cluster id. A learner has no vote yet
because it has not caught up. CONTACT is the time since the leader's last contact with a node, BEHIND the number
of log entries that the node lacked then. HTTP addresses are part of the output of -o json.

All endpoints are asked. An endpoint of another cluster is an error; one that does not answer is not.`,
		GroupID: groupOperate,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return q.run(cmd, func(ctx context.Context, c *client.Client) error {
				members, cluster, err := c.Members(ctx)
				if err != nil {
					return err
				}
				doc := membersDoc{cluster.ID, remainingText(cluster.HoldOff, 0), cluster.ElectionTimeout.String(), cluster.ShortTTLs, mapSlice(members, newMemberDoc)}
				return a.print(doc, doc.write)
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
