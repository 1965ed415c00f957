package admin

import (
	"cmp"
	"context"
	"errors"
	"io"
	"time"

	"zamok/api/zamokpb"
	"zamok/client"
	"zamok/client/call"
)

// Admin operates the cluster of a client. All methods may be called at the same time.
type Admin struct{ calls call.Client }

// New makes an Admin, which needs no Close. Its calls fail with ErrClosed after the client's Close.
func New(c *client.Client) *Admin { return &Admin{c.Calls()} }

// Now reads the replicated clock. If two calls do not overlap, the later one gets the greater
// stamp.
func (a *Admin) Now(ctx context.Context) (client.Stamp, error) {
	r, _, err := call.Leader(ctx, a.calls, call.Reads, call.Node.Now, &zamokpb.NowRequest{})
	return stampOf(r.GetStamp()), err
}

// Backup writes the state of the cluster to w. After an error w has only a part of it, which is no
// backup. Only the context bounds it.
func (a *Admin) Backup(ctx context.Context, w io.Writer) (written int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream when w fails
	var failed error
	err = a.calls.Stream(ctx, "the backup is not whole",
		func(one call.Node) (begun bool, err error) {
			stream, err := one.Backup(ctx, &zamokpb.BackupRequest{})
			for err == nil && failed == nil {
				var chunk *zamokpb.BackupChunk
				if chunk, err = stream.Recv(); err == nil {
					var n int
					n, failed = w.Write(chunk.GetData())
					written += int64(n)
				}
			}
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return written > 0, err
		})
	return written, cmp.Or(err, failed)
}

func stampOf(s *zamokpb.Stamp) client.Stamp {
	return client.Stamp{Term: s.GetTerm(), Index: s.GetIndex(), Time: time.Duration(s.GetTime())}
}
