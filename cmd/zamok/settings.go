package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"zamok/api/view"
	"zamok/client"
	"zamok/client/admin"
)

type settingsDoc struct {
	LongestTTL     view.Duration `json:"longest_ttl"`
	RestoreHoldOff view.Duration `json:"restore_hold_off"` // of a backup that is taken now
	Quotas         quotasDoc     `json:"quotas"`
	Used           quotasDoc     `json:"used"` // by all clients together
}

type quotasDoc struct {
	Sessions uint64 `json:"sessions,string"`
	Tickets  uint64 `json:"tickets,string"`
	Bytes    uint64 `json:"bytes,string"`
	Share    uint32 `json:"share,omitempty"` // percent of each that one identity may use
}

func newSettings(a *app) *cobra.Command {
	q := &requestFlags{}
	var longest time.Duration
	var quotas admin.Quotas
	cmd := &cobra.Command{
		Use:   "settings [--longest-ttl DURATION | --max-bytes N …]",
		Short: "show or change the settings of the cluster",
		Long: `Shows or changes the replicated settings of the cluster.

--longest-ttl is the longest ttl of sessions that are opened from now on: 1h in a new cluster, 1m to
168h. Raise it for locks that are held for hours without a process that renews. Sessions that are
open keep their ttl.

A restored cluster grants nothing until no lease of the old cluster can be valid any more. This
restore hold-off follows the highest value that the setting had before the backup was taken, and
does not become shorter when it is lowered again. A backup that was taken before the setting was
raised does not contain it: take a new backup at once.

Quotas limit what all clients together may use: sessions, tickets (acquisitions that wait or are
granted), and the approximate bytes that both take in the memory of every node. One identity may use
--identity-share of each; clients without a certificate or token count as one identity per host, or
/64 network of IPv6. New sessions and acquisitions beyond a quota are refused. Existing sessions and
locks are not affected, and releases always work. Plan three times --max-bytes as memory of each
node, in addition to its buffers: a node holds the state twice while it receives a snapshot.`,
		Example: "  zamok settings\n  zamok settings --longest-ttl 48h && zamok backup " +
			"locks.zamok\n" +
			"  zamok settings --max-bytes 1073741824 --max-tickets 2000000",
		GroupID: groupOperate,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			change := cmd.Flags().Changed("longest-ttl")
			if change && longest <= 0 {
				return &usageError{cmd.CommandPath(),
					fmt.Errorf("--longest-ttl is %v: it must be above 0", longest)}
			}
			if err := checkQuotas(cmd, change); err != nil {
				return &usageError{cmd.CommandPath(), err}
			}
			return q.run(cmd, func(ctx context.Context, c *client.Client) error {
				s, err := settings(ctx, admin.New(c), longest, quotas)
				if err != nil {
					return err
				}
				doc := settingsDoc{view.Duration(s.LongestTTL), view.Duration(s.RestoreHoldOff),
					quotasDoc(s.Quotas), quotasDoc(s.Used)}
				return a.print(doc, func(w io.Writer) { doc.write(w, change) })
			})
		},
	}
	q.register(a, cmd, requestTimeoutDefault)
	flags := cmd.Flags()
	flags.DurationVar(&longest, "longest-ttl", 0,
		"longest ttl of sessions that are opened from now on, 1m to 168h")
	flags.Uint64Var(&quotas.Sessions, maxSessions, 0,
		"maximum `number` of sessions of all clients, up to 1048576 (131072 in a new cluster)")
	flags.Uint64Var(&quotas.Tickets, maxTickets, 0,
		"maximum `number` of tickets of all clients, up to 2^32 (262144 in a new cluster)")
	flags.Uint64Var(&quotas.Bytes, maxBytes, 0,
		"maximum `bytes` of sessions, tickets and lock delays in the memory of each node, up to "+
			"2^40 (134217728 in a new cluster)")
	flags.Uint32Var(&quotas.Share, identityShare, 0,
		"`percent` of each quota that one identity may use, 1 to 100 (50 in a new cluster)")
	return cmd
}

// settings reads the settings, and changes before that the one that is not 0.
func settings(ctx context.Context, op *admin.Admin, longest time.Duration,
	quotas admin.Quotas) (admin.Settings, error) {
	switch {
	case longest != 0:
		return op.SetLongestTTL(ctx, longest)
	case quotas != (admin.Quotas{}):
		return op.SetQuotas(ctx, quotas)
	}
	return op.Settings(ctx)
}

const (
	maxSessions   = "max-sessions"
	maxTickets    = "max-tickets"
	maxBytes      = "max-bytes"
	identityShare = "identity-share"
)

// checkQuotas refuses quotas of 0, and quotas together with a longest ttl.
func checkQuotas(cmd *cobra.Command, longestTTL bool) error {
	for _, name := range []string{maxSessions, maxTickets, maxBytes, identityShare} {
		switch flag := cmd.Flags().Lookup(name); {
		case !flag.Changed:
		case flag.Value.String() == "0":
			return fmt.Errorf("--%s is 0: it must be above 0", name)
		case longestTTL:
			return errors.New(
				"--longest-ttl and quotas can't be changed together: change one after the other")
		}
	}
	return nil
}

// write includes what a higher longest ttl costs at a restore, and what older backups lack.
func (d settingsDoc) write(w io.Writer, changed bool) {
	kept := ""
	if changed {
		kept = " Sessions that are open keep theirs."
	}
	fmt.Fprintf(w, `The longest ttl of a session is %s.%s
A cluster restored from a backup that is taken now grants no lock for its first
%s, unless restore --hold-off sets another time: never less than the longest
ttl and delay of a session in the backup.
`, time.Duration(d.LongestTTL), kept, time.Duration(d.RestoreHoldOff))
	if changed {
		fmt.Fprintf(w, `
Backups that were taken before the longest ttl was raised do not contain it. Take
a new one now (zamok backup FILE), or restore those with --hold-off %s at
least. Lowering the longest ttl again does not make that shorter.
`, time.Duration(d.RestoreHoldOff))
	}
	fmt.Fprintf(w,
		"\nIn use: %d of %d sessions, %d of %d tickets, %d of %d bytes.\nOne identity may use %d "+
			"%% of each quota.\n",
		d.Used.Sessions, d.Quotas.Sessions, d.Used.Tickets, d.Quotas.Tickets, d.Used.Bytes,
		d.Quotas.Bytes, d.Quotas.Share)
}
