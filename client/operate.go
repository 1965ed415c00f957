package client

import (
	"cmp"
	"context"
	"errors"
	"io"

	"zamok/api/zamokpb"
)

// TicketRef names an acquisition.
type TicketRef struct{ Session, Ticket uint64 }

// ForceRelease ends what holds the lock with a token up to the one given: what the operator saw. Newer grants are not
// touched, so it may be repeated. If nothing holds it so, and an attempt of this call may have ended what did, the
// error says Unknown.
func (c *Client) ForceRelease(ctx context.Context, name string, token Token, reason string) ([]TicketRef, error) {
	r, inDoubt, err := call(ctx, c, repeats, (*node).ForceRelease, &zamokpb.ForceReleaseRequest{Name: name, Token: uint64(token), Reason: reason})
	if inDoubt && err == nil && len(r.GetEnded()) == 0 {
		err = &Error{Kind: ErrUnavailable, Outcome: Unknown,
			Message: "nothing holds it now; an attempt whose answer did not come may have ended what did"}
	}
	return each(r.GetEnded(), func(t *zamokpb.TicketRef) TicketRef { return TicketRef{t.GetSession(), t.GetTicket()} }), err
}

// ExpireSession ends a session as if its lease had run out. If it has ended, and an attempt of this call may
// have done that, the error says ErrSessionExpired and Unknown.
func (c *Client) ExpireSession(ctx context.Context, session uint64, reason string) error {
	_, _, err := call(ctx, c, repeats, (*node).ExpireSession, &zamokpb.ExpireSessionRequest{Session: session, Reason: reason})
	return err
}

// Join takes a node into the cluster, which runs with an empty directory and is reached by its peers at peer. One
// with the name and the address of a member that has been silent for 30 s replaces it.
func (c *Client) Join(ctx context.Context, id, peer string) error {
	_, _, err := call(ctx, c, changesOnce, (*node).Join, &zamokpb.JoinRequest{Id: id, Peer: peer})
	return err
}

// Remove takes a node out of the cluster, if the voters that remain have a majority that answers.
func (c *Client) Remove(ctx context.Context, id string) error {
	_, _, err := call(ctx, c, changesOnce, (*node).Remove, &zamokpb.RemoveRequest{Id: id})
	return err
}

// Transfer hands the leadership to a node; "" = to the one that is furthest.
func (c *Client) Transfer(ctx context.Context, to string) error {
	_, _, err := call(ctx, c, changesOnce, (*node).Transfer, &zamokpb.TransferRequest{To: to})
	return err
}

// Backup writes the state of the cluster. After an error w holds a part of it, which is no backup. The
// context alone bounds it.
func (c *Client) Backup(ctx context.Context, w io.Writer) (written int64, err error) {
	if err := c.open(); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream when w fails
	var failed error
	err = c.nodes.askInTurn(ctx, false, func(one *node) error {
		stream, err := one.Backup(ctx, &zamokpb.BackupRequest{})
		if err != nil {
			return err
		}
		for failed == nil {
			chunk, err := stream.Recv()
			switch {
			case errors.Is(err, io.EOF):
				return nil
			case err != nil && written > 0:
				return finalError{&Error{Kind: ErrUnavailable, Message: "the backup is not whole", cause: plain(err)}}
			case err != nil:
				return err
			}
			var n int
			n, failed = w.Write(chunk.GetData())
			written += int64(n)
		}
		return nil
	})
	if err == errNotAnswered {
		return written, c.nodes.unavailable(NotDone, contextEnd(ctx))
	}
	return written, cmp.Or(err, failed)
}
