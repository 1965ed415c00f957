package main

import (
	"context"
	"fmt"
	"io"
	"math"

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
	Free        uint64 `json:"free_bytes,string"`
	Low         bool   `json:"disk_low"`
}

func newMemberDoc(m client.Member) memberDoc {
	role := "learner" // it has no vote yet
	switch {
	case m.Leader:
		role = "leader"
	case m.Voter:
		role = "voter"
	}
	return memberDoc{m.ID, m.Incarnation, role, m.Client, m.Peer, m.HTTP, m.Version, m.FreeBytes, m.DiskLow}
}

func (m memberDoc) disk() string {
	switch {
	case m.Low:
		return bytesText(m.Free) + ", low"
	case m.Free == 0 || m.Free == math.MaxUint64: // not announced yet, or its data is in memory
		return "-"
	}
	return bytesText(m.Free)
}

func newMembers(a *app) *cobra.Command {
	q := &asking{}
	cmd := &cobra.Command{
		Use:   "members",
		Short: "list the nodes of the cluster, and its id",
		Long: `Lists the nodes with what each has announced of itself, and the id of the cluster. A learner has no vote
yet: it has not caught up.

Every endpoint is asked. One that belongs to another cluster is an error; one that does not answer is none.`,
		GroupID: groupRun,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return q.run(cmd, func(ctx context.Context, c *client.Client) error {
				members, cluster, err := c.Members(ctx)
				if err != nil {
					return err
				}
				doc := struct {
					Cluster string      `json:"cluster"`
					Members []memberDoc `json:"members"`
				}{cluster, each(members, newMemberDoc)}
				return a.print(doc, func(w io.Writer) {
					rows := [][]string{{"ID", "ROLE", "CLIENTS AT", "PEERS AT", "HTTP", "DISK FREE", "VERSION"}}
					for _, m := range doc.Members {
						rows = append(rows, []string{m.ID, m.Role, firstOf(m.Client), m.Peer, firstOf(m.HTTP), m.disk(), firstOf(m.Version)})
					}
					table(w, rows)
					fmt.Fprintf(w, "\nThe cluster's id is %s.\n", cluster)
				})
			})
		},
	}
	q.flags(a, cmd, askPatience)
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
