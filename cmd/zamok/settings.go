package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"zamok/client"
)

type settingsDoc struct {
	LongestTTL     string `json:"longest_ttl"`
	RestoreHoldOff string `json:"restore_hold_off"` // of a backup that is taken now
}

func newSettings(a *app) *cobra.Command {
	q := &requestFlags{}
	var longest time.Duration
	cmd := &cobra.Command{
		Use:   "settings [--longest-ttl DURATION]",
		Short: "show or change the settings of the cluster",
		Long: `Shows the settings that all nodes of the cluster obey, or changes one.

--longest-ttl is the longest ttl of sessions that are opened from now on: 1h in a new cluster, 1m to 168h. Raise
it for locks that are held for hours without a process that renews. Sessions that are open keep their ttl.

A restored cluster grants nothing until no lease of the old cluster can be valid any more. This restore hold-off
follows the highest value that the setting had before the backup was taken, and does not become shorter when
it is lowered again. A backup that was taken before the setting was raised does not know of it: take a new
backup at once.`,
		Example: "  zamok settings\n  zamok settings --longest-ttl 48h && zamok backup locks.zamok",
		GroupID: groupOperate,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			change := cmd.Flags().Changed("longest-ttl")
			if change && longest <= 0 {
				return &usageError{cmd.CommandPath(), fmt.Errorf("--longest-ttl is %v: it must be above 0", longest)}
			}
			return q.run(cmd, func(ctx context.Context, c *client.Client) error {
				read := c.Settings
				if change {
					read = func(ctx context.Context) (client.Settings, error) { return c.SetLongestTTL(ctx, longest) }
				}
				s, err := read(ctx)
				if err != nil {
					return err
				}
				doc := settingsDoc{s.LongestTTL.String(), s.RestoreHoldOff.String()}
				return a.print(doc, func(w io.Writer) { doc.write(w, change) })
			})
		},
	}
	q.register(a, cmd, requestTimeoutDefault)
	cmd.Flags().DurationVar(&longest, "longest-ttl", 0, "longest ttl of sessions that are opened from now on, 1m to 168h")
	return cmd
}

// write includes what a higher longest ttl costs at a restore, and what older backups lack.
func (d settingsDoc) write(w io.Writer, changed bool) {
	kept := ""
	if changed {
		kept = " Sessions that are open keep theirs."
	}
	fmt.Fprintf(w, `The longest ttl of a session is %s.%s
A cluster restored from a backup that is taken now grants no lock for its first
%s, unless restore --quiet sets another time: never less than the longest
ttl and delay of a session in the backup.
`, d.LongestTTL, kept, d.RestoreHoldOff)
	if changed {
		fmt.Fprintf(w, `
Backups that were taken before the longest ttl was raised do not know of it. Take
a new one now (zamok backup FILE), or restore those with --quiet %s at
least. Lowering the longest ttl again does not make that shorter.
`, d.RestoreHoldOff)
	}
}
