package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"zamok/api/visible"
	"zamok/client"
	"zamok/client/admin"
	"zamok/fsm"
)

func newBackup(a *app) *cobra.Command {
	q := &requestFlags{}
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "write a backup of the cluster to a file",
		Long: `Writes the state of the cluster at one moment after the call to FILE, then reads the
file back to verify it. FILE appears only when it is complete and replaces an existing file. With -
the backup goes to standard output and is not read back.

See ` + "`zamok restore --help`" + ` for what a backup can restore.`,
		Example: "  zamok backup locks.zamok",
		GroupID: groupOperate,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return q.run(cmd, func(ctx context.Context, c *client.Client) error {
				ctx, cancel := context.WithTimeoutCause(ctx, q.timeout, errTimeout)
				defer cancel()
				if args[0] == "-" {
					_, err := admin.New(c).Backup(ctx, a.stdout)
					return err
				}
				return a.backup(ctx, c, args[0])
			})
		},
	}
	q.register(a, cmd, changeTimeoutDefault)
	return cmd
}

type backupDoc struct {
	Path     string `json:"file"`
	Bytes    int64  `json:"bytes,string"`
	Index    uint64 `json:"index,string"`
	Locks    int    `json:"locks"`
	Sessions int    `json:"sessions"`
}

func (a *app) backup(ctx context.Context, c *client.Client, path string) error {
	doc, err := writeBackup(ctx, c, path)
	if err != nil {
		return fmt.Errorf("no backup was made: %w", err)
	}
	return a.print(doc, func(w io.Writer) {
		fmt.Fprintf(w, "%s: %s, complete; %d locks and %d sessions at index %d\n",
			visible.Line(doc.Path), bytesText(uint64(doc.Bytes)), doc.Locks, doc.Sessions,
			doc.Index)
	})
}

// writeBackup replaces the file with a backup only when that is complete, on the disk, and can be
// read.
func writeBackup(ctx context.Context, c *client.Client, path string) (doc backupDoc, err error) {
	// of mode 0600: it names the holders of locks
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".part-*")
	if err != nil {
		return doc, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, file.Close(), os.Remove(file.Name()))
		}
	}()
	out := bufio.NewWriter(file)
	if doc.Bytes, err = admin.New(c).Backup(ctx, out); err != nil {
		return doc, err
	}
	if err = errors.Join(out.Flush(), file.Sync()); err != nil {
		return doc, err
	}
	if _, err = file.Seek(0, io.SeekStart); err != nil {
		return doc, err
	}
	m, err := fsm.Restore(bufio.NewReader(file))
	if err != nil {
		return doc, fmt.Errorf("the backup was received, but can't be read: %w", err)
	}
	doc.Path, doc.Index, doc.Locks, doc.Sessions = path, m.Stamp().Index, m.Counts().Locks,
		m.Counts().Sessions
	if err = os.Rename(file.Name(), path); err != nil {
		return doc, err
	}
	return doc, file.Close()
}
