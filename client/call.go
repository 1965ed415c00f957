package client

import (
	"cmp"
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"zamok/api/zamokpb"
)

const (
	// patienceMin is how long the first attempt at a node may take, so that a node which vanished
	// without a word holds up the round no longer; further rounds are more patient.
	patienceMin = 500 * time.Millisecond
	patienceMax = 5 * time.Second
	// changeTimeout is how long a change of the members may take: a node that joins has to catch up.
	changeTimeout = time.Minute
	// unbounded is longer than any wait.
	unbounded = 1 << 62
)

// effect is what an attempt without an answer may have done.
type effect uint8

const (
	reads       effect = iota // nothing
	repeats                   // what the next attempt may do again
	waits                     // the same, and the answer may take as long as the caller's context
	changesOnce               // what must not be done again
)

// call makes a unary call at the current leader until it is answered, definitely refused, or its time is over. It reports
// whether an attempt, perhaps not the last one, may have taken effect without an answer. Once one may have, an
// error has the outcome Unknown, whatever a later attempt comes to.
func call[Q proto.Message, R any](ctx context.Context, c *Client, effect effect,
	method func(*node, context.Context, Q, ...grpc.CallOption) (R, error), request Q) (r R, inDoubt bool, err error) {
	// gRPC would report text that is not UTF-8 like a failure of the node, and other nodes would be asked.
	if _, err := proto.Marshal(request); err != nil {
		return r, false, &Error{Kind: ErrInvalid, Field: "request", cause: err}
	}
	limit, patience := c.cfg.RequestTimeout, patienceMin
	switch effect {
	case waits:
		limit, patience = unbounded, unbounded
	case changesOnce:
		// Find the leader first: an attempt at a node that is down would be in doubt, too.
		if _, err := c.Now(ctx); err != nil {
			return r, false, err
		}
		limit, patience = changeTimeout, changeTimeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errRequestTimeout)
	defer cancel()
	outcome := NotDone
	doubt := func(err error) bool {
		if effect == reads || err == nil || notDone(err) || refusal(err) != nil {
			return false
		}
		outcome = Unknown
		return true
	}
	tries := attempts[R]{begin: func(ctx context.Context, _ context.CancelCauseFunc, one *node) (R, error) {
		return method(one, ctx, request)
	}}
	ask := func(one *node) error {
		e := tries.ask(ctx, one, patience)
		if r = e.value; e.err != errNoAnswer && doubt(e.err) && effect == changesOnce {
			return finalError{&Error{Kind: ErrUnavailable, cause: plain(e.err)}}
		}
		return e.result(one)
	}
	var between pause
	for err = c.ask(ctx, theLeader, ask); err == errNotAnswered && ctx.Err() == nil && between.wait(ctx); {
		patience = max(patience, min(2*patience, patienceMax))
		err = c.ask(ctx, theLeader, ask)
	}
	for _, e := range tries.end() {
		doubt(cmp.Or(e.err, errNoAnswer)) // what is done twice is in doubt
	}
	switch {
	case err == errNotAnswered:
		return r, outcome == Unknown, c.nodes.unavailable(outcome, contextEnd(ctx))
	case outcome == Unknown:
		return r, true, withOutcome(err, Unknown)
	}
	return r, false, err
}

// Get returns a lock's holders and waiters, in order. It names at most 100 of each, or as many
// as limit says, up to 200.
func (c *Client) Get(ctx context.Context, name string, limit int) (*LockDetail, error) {
	r, _, err := call(ctx, c, reads, (*node).Get, &zamokpb.GetRequest{Name: name, Limit: uint32(max(limit, 0))})
	if err != nil {
		return nil, err
	}
	return &LockDetail{LockInfo: lockInfo(r.GetLock()), Held: each(r.GetHolders(), ticketInfo), Queue: each(r.GetQueue(), ticketInfo), Stamp: stamp(r.GetStamp())}, nil
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
	}), ClusterInfo{ID: r.GetCluster(), HoldOff: time.Duration(r.GetHoldOff()), ElectionTimeout: time.Duration(r.GetElectionTimeout()), ShortTTLs: int(r.GetShortTtls())}, err
}

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

// Settings are what all nodes of a cluster obey.
type Settings struct {
	// LongestTTL is the longest ttl that a session may be opened with.
	LongestTTL time.Duration
	// RestoreHoldOff is how long a cluster that is restored from a backup taken now grants nothing, unless the restore is
	// given a shorter time. It follows the highest value that LongestTTL ever had.
	RestoreHoldOff time.Duration
	// Quotas are the quotas in force, and Used is the usage of all clients; its Share is 0.
	Quotas, Used Quotas
}

// Quotas limit what clients can make every node of a cluster store. A session or an acquisition beyond one fails with ErrLimit.
type Quotas struct {
	Sessions uint64 // live sessions of all clients together
	Tickets  uint64 // acquisitions that wait or are granted
	Bytes    uint64 // approximate memory of sessions, tickets and lock delays on each node
	Share    uint32 // percentage of each that one identity may use
}

// OfIdentity is what one identity may use; its Share is 0.
func (q Quotas) OfIdentity() Quotas {
	part := func(all uint64) uint64 { return (all*uint64(q.Share) + 99) / 100 }
	return Quotas{Sessions: part(q.Sessions), Tickets: part(q.Tickets), Bytes: part(q.Bytes)}
}

func quotasOf(q *zamokpb.Quotas) Quotas {
	return Quotas{Sessions: q.GetSessions(), Tickets: q.GetTickets(), Bytes: q.GetBytes(), Share: q.GetShare()}
}

// Settings reads the settings of the cluster.
func (c *Client) Settings(ctx context.Context) (Settings, error) {
	return c.settings(ctx, reads, &zamokpb.SettingsRequest{})
}

// SetLongestTTL changes the longest ttl of sessions that are opened from now on: from a minute to 7 days. Sessions that
// are open keep theirs. It returns all settings as they are then.
func (c *Client) SetLongestTTL(ctx context.Context, ttl time.Duration) (Settings, error) {
	if ttl == 0 { // would only read
		return Settings{}, invalid("longest_ttl", "is 0: it is from 1 m to 7 days")
	}
	return c.settings(ctx, repeats, &zamokpb.SettingsRequest{LongestTtl: int64(ttl)})
}

// SetQuotas changes the quotas that are not 0, and returns all settings. Lowering a quota ends nothing.
func (c *Client) SetQuotas(ctx context.Context, q Quotas) (Settings, error) {
	if q == (Quotas{}) { // would only read
		return Settings{}, invalid("quotas", "are all 0")
	}
	return c.settings(ctx, repeats, &zamokpb.SettingsRequest{
		Quotas: &zamokpb.Quotas{Sessions: q.Sessions, Tickets: q.Tickets, Bytes: q.Bytes, Share: q.Share},
	})
}

// IdentityUsage is what one identity uses; its Share is 0.
type IdentityUsage struct {
	Identity string
	Used     Quotas
}

// Usage reads the settings, and the usage of at most so many identities, up to 1000: those first that use the largest part of
// a quota of theirs.
func (c *Client) Usage(ctx context.Context, limit int) (s Settings, identities []IdentityUsage, err error) {
	r, _, err := call(ctx, c, reads, (*node).Settings, &zamokpb.SettingsRequest{Identities: uint32(max(limit, 0))})
	for _, u := range r.GetIdentities() {
		identities = append(identities, IdentityUsage{u.GetIdentity(), quotasOf(u.GetUsed())})
	}
	return settingsOf(r), identities, err
}

func (c *Client) settings(ctx context.Context, effect effect, request *zamokpb.SettingsRequest) (Settings, error) {
	r, _, err := call(ctx, c, effect, (*node).Settings, request)
	return settingsOf(r), err
}

func settingsOf(r *zamokpb.SettingsResponse) Settings {
	return Settings{
		LongestTTL: time.Duration(r.GetLongestTtl()), RestoreHoldOff: time.Duration(r.GetRestoreHoldOff()),
		Quotas: quotasOf(r.GetQuotas()), Used: quotasOf(r.GetUsed()),
	}
}

// Backup writes the state of the cluster. After an error w holds a part of it, which is no backup. The
// context alone bounds it.
func (c *Client) Backup(ctx context.Context, w io.Writer) (written int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream when w fails
	var failed error
	err = c.ask(ctx, theLeader, func(one *node) error {
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
