package client

import (
	"context"
	"time"

	"zamok/api/zamokpb"
)

// Get returns a lock's holders and waiters, in order. It names at most 100 of each, or as many
// as limit says, up to 200.
func (c *Client) Get(ctx context.Context, name string, limit int) (*LockDetail, error) {
	r, _, err := call(ctx, c, reads, (*node).Get, &zamokpb.GetRequest{Name: name, Limit: uint32(max(limit, 0))})
	if err != nil {
		return nil, err
	}
	return &LockDetail{LockInfo: lockInfo(r.GetLock()), Held: tickets(r.GetHolders()), Queue: tickets(r.GetQueue()), Stamp: stamp(r.GetStamp())}, nil
}

// List lists locks in use whose names begin with prefix and come after `after`, in order: at most limit, or
// 1000 if that is 0. The stamp's index is where a Watch continues.
func (c *Client) List(ctx context.Context, prefix, after string, limit int) ([]LockInfo, Stamp, error) {
	r, _, err := call(ctx, c, reads, (*node).List, &zamokpb.ListRequest{Prefix: prefix, After: after, Limit: uint32(max(limit, 0))})
	return each(r.GetLocks(), lockInfo), stamp(r.GetStamp()), err
}

// listMax is how many a node lists at once.
const listMax = 1000

// Sessions lists living sessions with ids above after, in order: at most limit, or 1000 if that is 0. It asks as often
// as it takes, since sessions with much metadata come in short answers; the stamp is that of the first.
func (c *Client) Sessions(ctx context.Context, after uint64, limit int) (list []SessionInfo, at Stamp, err error) {
	if limit <= 0 {
		limit = listMax
	}
	for len(list) < limit {
		page := &zamokpb.ListSessionsRequest{After: after, Limit: uint32(min(limit-len(list), listMax))}
		r, _, err := call(ctx, c, reads, (*node).ListSessions, page)
		if err != nil {
			return nil, Stamp{}, err
		}
		if at == (Stamp{}) {
			at = stamp(r.GetStamp())
		}
		if len(r.GetSessions()) == 0 {
			break
		}
		list = append(list, each(r.GetSessions(), sessionInfo)...)
		after = list[len(list)-1].Session
	}
	return list, at, nil
}

// Grant names a grant for Check. The token is enough for an exclusive lock; shared locks and permits may
// have theirs in common with others, so session and ticket are needed too.
type Grant struct {
	Name            string
	Token           Token
	Session, Ticket uint64
}

// Grant is the handle's.
func (l *Lock) Grant() Grant {
	return Grant{Name: l.Name(), Token: l.Token(), Session: l.Session(), Ticket: l.Ticket()}
}

// Check asks the cluster whether a grant is held. Yes was true at a moment between call and answer.
func (c *Client) Check(ctx context.Context, g Grant) (held bool, at Stamp, err error) {
	r, _, err := call(ctx, c, reads, (*node).Check, &zamokpb.CheckRequest{
		Name: g.Name, Token: uint64(g.Token), Session: g.Session, Ticket: g.Ticket})
	return r.GetHeld(), stamp(r.GetStamp()), err
}

// Now reads the replicated clock. Of calls that do not overlap the later gets the greater stamp.
func (c *Client) Now(ctx context.Context) (Stamp, error) {
	r, _, err := call(ctx, c, reads, (*node).Now, &zamokpb.NowRequest{})
	return stamp(r.GetStamp()), err
}

// Members returns the nodes, and the state of the cluster. It asks every endpoint, too, and fails with ErrWrongCluster
// if one that answers belongs to another cluster.
func (c *Client) Members(ctx context.Context) (members []Member, cluster ClusterInfo, err error) {
	if err := c.open(); err != nil {
		return nil, ClusterInfo{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.RequestTimeout, errRequestTimeout)
	defer cancel()
	if _, err := c.nodes.survey(ctx); err != nil {
		return nil, ClusterInfo{}, err
	}
	r, _, err := call(ctx, c, reads, (*node).Members, &zamokpb.MembersRequest{})
	return each(r.GetMembers(), func(m *zamokpb.Member) Member {
		return Member{
			ID: m.GetId(), Client: m.GetClient(), Peer: m.GetPeer(), HTTP: m.GetHttp(), Version: m.GetVersion(),
			Incarnation: m.GetIncarnation(), Voter: m.GetVoter(), Leader: m.GetLeader(), FreeBytes: m.GetFreeBytes(), DiskLow: m.GetDiskLow(),
			LastContact: time.Duration(m.GetLastContact()), Behind: m.Behind,
		}
	}), ClusterInfo{ID: r.GetCluster(), HoldOff: time.Duration(r.GetHoldOff()), ElectionTimeout: time.Duration(r.GetElectionTimeout())}, err
}
