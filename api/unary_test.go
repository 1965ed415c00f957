package api

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/session"
)

// TestUnaryCalls goes through the calls on the leader, and relayed by a follower.
func TestUnaryCalls(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	leader, follower := c.leader(), c.follower()
	for _, road := range []struct {
		name string
		node *Node
		ctx  func(context.Context) context.Context
	}{
		{"leader", leader, func(ctx context.Context) context.Context { return ctx }},
		{"relayed", follower, relaying},
	} {
		t.Run(road.name, func(t *testing.T) {
			to := call(t, road.node)
			for _, story := range []struct {
				name string
				run  func(*testing.T, *sessionOf)
			}{
				{"a session", storySession}, {"a lock", storyLock}, {"waiting", storyWaiting},
				{"reading", storyReading},
				{"cancelled", storyCancelled}, {"operators", storyOperators},
				{"settings", storySettings}, {"quotas", storyQuotas},
				{"wrong secret", storyWrongSecret},
			} {
				t.Run(story.name, func(t *testing.T) {
					story.run(t, openSession(t, road.ctx(soon(t)), to))
				})
			}
		})
	}
	t.Run("follower", func(t *testing.T) { storyFollower(t, leader, call(t, follower)) })
}

func storySession(t *testing.T, s *sessionOf) {
	least := 4 * clock.FromDuration(steady)
	short, err := s.OpenSession(s.ctx, &zamokpb.OpenSessionRequest{
		Secret: newSecret(), Settings: &zamokpb.SessionSettings{Ttl: int64(fsm.TTLMin)},
	})
	require.NoError(t, err)
	require.Less(t, short.Ttl, short.TtlMin, "a failover could end it")
	require.EqualValues(t, least, short.TtlMin)

	again, err := s.OpenSession(s.ctx, &zamokpb.OpenSessionRequest{
		Secret: s.secret, Settings: &zamokpb.SessionSettings{Ttl: int64(clock.Second * 5)},
	})
	require.NoError(t, err)
	assert.Equal(t, s.id, again.Session, "the same secret finds the same session")
	assert.EqualValues(t, clock.Minute, again.Ttl, "which keeps its ttl")

	renewed, err := s.RenewSession(s.ctx,
		&zamokpb.RenewSessionRequest{Session: s.id, Secret: s.secret, Sent: []byte("renewing")})
	require.NoError(t, err)
	assert.EqualValues(t, least, renewed.TtlMin)
	assert.Equal(t, "renewing", string(renewed.Sent))
	assert.EqualValues(t, clock.Minute, renewed.Ttl)
	assert.GreaterOrEqual(t, renewed.Time, again.Time)

	held := s.hold("session/" + t.Name())
	_, err = s.CloseSession(s.ctx, &zamokpb.CloseSessionRequest{Session: s.id, Secret: s.secret})
	require.NoError(t, err)
	check, err := s.Check(s.ctx,
		&zamokpb.CheckRequest{Name: "session/" + t.Name(), Token: held.Token})
	require.NoError(t, err)
	assert.False(t, check.Held)
	_, err = s.RenewSession(s.ctx, &zamokpb.RenewSessionRequest{Session: s.id, Secret: s.secret})
	assert.Equal(t, zamokpb.Code_CODE_NO_SESSION, infoOf(t, err).Code)
	_, err = s.Acquire(s.ctx, s.next("x", 0))
	assert.Equal(t, zamokpb.Code_CODE_NO_SESSION, infoOf(t, err).Code)
}

func storyLock(t *testing.T, s *sessionOf) {
	name := "lock/" + t.Name()
	held := s.hold(name)
	request := s.next(name, 0)
	request.Acquire.Ticket = held.Ticket
	repeated, err := s.Acquire(s.ctx, request)
	require.NoError(t, err)
	assert.Equal(t, held.Token, repeated.State.Token, "a repeated ticket is answered as before")

	_, err = s.Acquire(s.ctx, s.next(name, 0))
	info := infoOf(t, err)
	assert.Equal(t, codes.FailedPrecondition, status.Code(err))
	assert.Equal(t, zamokpb.Code_CODE_NOT_ACQUIRED, info.Code)
	assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, info.Outcome)
	require.Len(t, info.Blockers, 1)
	assert.Equal(t, held.Token, info.Blockers[0].Token)
	assert.Equal(t, "of a test", info.Blockers[0].Label)

	_, err = s.Downgrade(s.ctx,
		&zamokpb.DowngradeRequest{Session: s.id, Secret: s.secret, Ticket: held.Ticket + 100})
	assert.Equal(t, zamokpb.Code_CODE_NOT_HELD, infoOf(t, err).Code)
	lower, err := s.Downgrade(s.ctx,
		&zamokpb.DowngradeRequest{Session: s.id, Secret: s.secret, Ticket: held.Ticket,
			Sent: []byte("d")})
	require.NoError(t, err)
	assert.Equal(t, held.Token, lower.State.Token)
	assert.Equal(t, "d", string(lower.Sent))

	assert.Equal(t, zamokpb.State_STATE_ENDED, s.drop(held.Ticket).State)
	assert.Equal(t, zamokpb.State_STATE_ENDED, s.drop(held.Ticket).State, "a drop may be repeated")
	_, err = s.Acquire(s.ctx, request)
	assert.Equal(t, zamokpb.Code_CODE_TICKET_ENDED, infoOf(t, err).Code)
	assert.Equal(t, zamokpb.Reason_REASON_DROPPED, infoOf(t, err).Reason)
	assert.Greater(t, s.hold(name).Token, held.Token)
}

// called is what a held call came to.
type called struct {
	answer *zamokpb.AcquireResponse
	err    error
}

// acquire calls on a goroutine of its own.
func (s *sessionOf) acquire(ctx context.Context, request *zamokpb.AcquireRequest) <-chan called {
	done := make(chan called, 1)
	go func() {
		answer, err := s.Acquire(ctx, request)
		done <- called{answer, err}
	}()
	return done
}

// waiters waits until so many wait for a lock.
func (s *sessionOf) waiters(name string, want int) {
	s.Helper()
	require.EventuallyWithT(s, func(t *assert.CollectT) {
		lock, err := s.Get(s.ctx, &zamokpb.GetRequest{Name: name})
		require.NoError(t, err)
		require.EqualValues(t, want, lock.Lock.Waiters, "%v", lock)
	}, patience, 5*time.Millisecond)
}

func storyWaiting(t *testing.T, s *sessionOf) {
	name := "wait/" + t.Name()
	first := s.hold(name)
	second := s.acquire(s.ctx, s.next(name, fsm.Forever))
	s.waiters(name, 1)
	third := s.acquire(s.ctx, s.next(name, fsm.Forever))
	s.waiters(name, 2)
	last := s.ticket
	s.drop(first.Ticket)
	o := <-second
	require.NoError(t, o.err)
	assert.Greater(t, o.answer.State.Token, first.Token)
	assert.Equal(t, "asking", string(o.answer.Sent))

	s.drop(last) // another call of the same session gives up
	assert.Equal(t, zamokpb.Reason_REASON_DROPPED, infoOf(t, (<-third).err).Reason)

	late := <-s.acquire(s.ctx, s.next(name, 50*clock.Millisecond))
	assert.Equal(t, zamokpb.Code_CODE_NOT_ACQUIRED, infoOf(t, late.err).Code)
	assert.Equal(t, zamokpb.Reason_REASON_WAIT_TIMEOUT, infoOf(t, late.err).Reason)

	fourth := s.acquire(s.ctx, s.next(name, fsm.Forever))
	s.waiters(name, 1)
	_, err := s.CloseSession(s.ctx, &zamokpb.CloseSessionRequest{Session: s.id, Secret: s.secret})
	require.NoError(t, err)
	assert.Equal(t, zamokpb.Code_CODE_NO_SESSION, infoOf(t, (<-fourth).err).Code)
}

// A call that ends before its answer leaves no ticket behind.
func storyCancelled(t *testing.T, s *sessionOf) {
	name := "giving up/" + t.Name()
	held := s.hold(name)
	ctx, cancel := context.WithCancel(s.ctx)
	call := s.acquire(ctx, s.next(name, fsm.Forever))
	s.waiters(name, 1)
	cancel()
	require.Equal(t, codes.Canceled, status.Code((<-call).err))
	s.waiters(name, 0)

	// However soon it ends: perhaps nothing was requested then, but nothing is held.
	for range 20 {
		ctx, cancel := context.WithTimeout(s.ctx, time.Millisecond)
		<-s.acquire(ctx, s.next("giving up soon/"+t.Name(), fsm.Forever))
		cancel()
	}
	s.drop(held.Ticket)
	require.Eventually(t, func() bool {
		list, err := s.List(s.ctx, &zamokpb.ListRequest{Prefix: "cancelled"})
		return err == nil && len(list.Locks) == 0 || s.dropAll()
	}, patience, 10*time.Millisecond)
}

// A client that gave a call up and requested the same ticket again keeps it, however late this node
// notices the first call's end.
func TestARepeatedCallOwnsItsTicket(t *testing.T) {
	n := startCluster(t, 1, nil).leader()
	s := openSession(t, soon(t), call(t, n))
	waits := func(calls int) {
		require.Eventually(t, func() bool {
			return n.server.hub.Counts().Calls == calls
		}, patience, time.Millisecond)
	}
	held := s.hold("repeated")
	request := s.next("repeated", fsm.Forever)
	ctx, cancel := context.WithCancel(s.ctx)
	first := s.acquire(ctx, request)
	s.waiters("repeated", 1)
	second := s.acquire(s.ctx, request)
	waits(2)
	cancel()
	require.Equal(t, codes.Canceled, status.Code((<-first).err))
	waits(1)
	s.drop(held.Ticket)
	o := <-second
	require.NoError(t, o.err)
	assert.Equal(t, request.Acquire.Ticket, o.answer.State.Ticket)
	waits(0)
}

// dropAll drops what was granted before its call ended, which its caller does not know.
func (s *sessionOf) dropAll() bool {
	for ticket := uint64(1); ticket <= s.ticket; ticket++ {
		s.drop(ticket)
	}
	return false
}

func storyReading(t *testing.T, s *sessionOf) {
	before, err := s.Now(s.ctx, &zamokpb.NowRequest{})
	require.NoError(t, err)
	prefix := "read/" + t.Name() + "/"
	a, b := s.hold(prefix+"a"), s.hold(prefix+"b")
	waiter := s.acquire(s.ctx, s.next(prefix+"a", fsm.Forever))
	s.waiters(prefix+"a", 1)

	lock, err := s.Get(s.ctx, &zamokpb.GetRequest{Name: prefix + "a"})
	require.NoError(t, err)
	require.Len(t, lock.Holders, 1)
	assert.Equal(t, a.Token, lock.Holders[0].State.Token)
	assert.Equal(t, "of a test", lock.Holders[0].Label)
	require.Len(t, lock.Queue, 1)
	require.Len(t, lock.Queue[0].Blockers, 1)
	assert.Equal(t, a.Token, lock.Queue[0].Blockers[0].Token)
	assert.Greater(t, lock.Stamp.Index, before.Stamp.Index)
	free, err := s.Get(s.ctx, &zamokpb.GetRequest{Name: prefix + "free"})
	require.NoError(t, err)
	assert.Empty(t, free.Holders)
	assert.Equal(t, prefix+"free", free.Lock.Name)

	list, err := s.List(s.ctx, &zamokpb.ListRequest{Prefix: prefix})
	require.NoError(t, err)
	require.Len(t, list.Locks, 2)
	assert.Equal(t, prefix+"a", list.Locks[0].Name)
	assert.EqualValues(t, 1, list.Locks[0].Waiters)
	list, err = s.List(s.ctx, &zamokpb.ListRequest{Prefix: prefix, After: prefix + "a"})
	require.NoError(t, err)
	require.Len(t, list.Locks, 1)

	sessions, err := s.ListSessions(s.ctx, &zamokpb.ListSessionsRequest{After: s.id - 1, Limit: 1})
	require.NoError(t, err)
	require.Len(t, sessions.Sessions, 1)
	assert.Equal(t, s.id, sessions.Sessions[0].Session)
	assert.Equal(t, "anonymous@127.0.0.1", sessions.Sessions[0].Identity)

	for token, held := range map[uint64]bool{b.Token: true, b.Token - 1: false} {
		check, err := s.Check(s.ctx, &zamokpb.CheckRequest{Name: prefix + "b", Token: token})
		require.NoError(t, err)
		assert.Equal(t, held, check.Held)
	}
	check, err := s.Check(s.ctx,
		&zamokpb.CheckRequest{Name: prefix + "b", Token: b.Token, Session: s.id, Ticket: a.Ticket})
	require.NoError(t, err)
	assert.False(t, check.Held, "another ticket's")
	_, err = s.Check(s.ctx, &zamokpb.CheckRequest{Name: prefix + "b", Token: 1 << 62})
	assert.Equal(t, zamokpb.Code_CODE_INVALID, infoOf(t, err).Code)
	assert.Contains(t, infoOf(t, err).Message, "this cluster has issued none above")
	s.drop(a.Ticket)
	require.NoError(t, (<-waiter).err)
}

func storyOperators(t *testing.T, s *sessionOf) {
	name := "force/" + t.Name()
	held := s.hold(name)
	released, err := s.admin.ForceRelease(s.ctx,
		&zamokpb.ForceReleaseRequest{Name: name, Token: held.Token - 1, Reason: "older"})
	require.NoError(t, err)
	assert.Empty(t, released.Ended, "the operator saw an older grant")
	released, err = s.admin.ForceRelease(s.ctx,
		&zamokpb.ForceReleaseRequest{Name: name, Token: held.Token, Reason: "stuck"})
	require.NoError(t, err)
	require.Len(t, released.Ended, 1)
	assert.Equal(t, s.id, released.Ended[0].Session)

	_, err = s.admin.ExpireSession(s.ctx,
		&zamokpb.ExpireSessionRequest{Session: s.id, Reason: "stuck"})
	require.NoError(t, err)
	_, err = s.admin.ExpireSession(s.ctx, &zamokpb.ExpireSessionRequest{Session: s.id})
	assert.Equal(t, zamokpb.Code_CODE_NO_SESSION, infoOf(t, err).Code)

	var members *zamokpb.MembersResponse
	require.Eventually(t, func() bool { // a node announces itself when it knows the leader
		members, err = s.admin.Members(s.ctx, &zamokpb.MembersRequest{})
		return err != nil || !slices.ContainsFunc(members.Members,
			func(m *zamokpb.Member) bool { return m.Client == "" })
	}, patience, 5*time.Millisecond)
	require.NoError(t, err)
	require.Len(t, members.Members, 3)
	leaders := 0
	for _, m := range members.Members {
		assert.True(t, m.Voter)
		assert.NotEmpty(t, m.Client)
		if m.Leader {
			leaders++
			assert.Equal(t, members.Leader, m.Id)
		}
	}
	assert.Equal(t, 1, leaders)
	assert.Len(t, members.Cluster, 32)

	_, err = s.admin.Join(s.ctx, &zamokpb.JoinRequest{Id: "n9", Peer: members.Members[0].Peer})
	assert.Equal(t, zamokpb.Code_CODE_REFUSED, infoOf(t, err).Code)
	assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, infoOf(t, err).Outcome)
	_, err = s.admin.Transfer(s.ctx, &zamokpb.TransferRequest{To: "n9"})
	assert.Equal(t, "id", infoOf(t, err).Field)
	_, err = s.admin.Remove(s.ctx, &zamokpb.RemoveRequest{Id: "n9"})
	assert.Equal(t, "id", infoOf(t, err).Field)
}

func storySettings(t *testing.T, s *sessionOf) {
	set := func(longest clock.Span) *zamokpb.SettingsResponse {
		t.Helper()
		settings, err := s.admin.Settings(s.ctx,
			&zamokpb.SettingsRequest{LongestTtl: int64(longest)})
		require.NoError(t, err)
		return settings
	}
	long := &zamokpb.OpenSessionRequest{Secret: newSecret(),
		Settings: &zamokpb.SessionSettings{Ttl: int64(3 * clock.Hour)}}
	_, err := s.OpenSession(s.ctx, long)
	info := infoOf(t, err)
	assert.Equal(t, zamokpb.Code_CODE_INVALID, info.Code)
	assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, info.Outcome)
	assert.Equal(t, "ttl", info.Field)
	assert.Contains(t, info.Message, "1h0m0s")
	assert.Contains(t, info.Message, "zamok settings --longest-ttl")

	raised := set(3 * clock.Hour)
	assert.EqualValues(t, 3*clock.Hour, raised.LongestTtl)
	assert.EqualValues(t, 3*clock.Hour+clock.Minute, raised.RestoreHoldOff)
	opened, err := s.OpenSession(s.ctx, long)
	require.NoError(t, err)
	assert.EqualValues(t, 3*clock.Hour, opened.Ttl)

	lowered := set(clock.Hour)
	assert.EqualValues(t, clock.Hour, lowered.LongestTtl)
	assert.Equal(t, raised.RestoreHoldOff, lowered.RestoreHoldOff,
		"a restore follows the highest that there was")
	again, err := s.OpenSession(s.ctx, long)
	require.NoError(t, err, "the answer may have been lost")
	assert.Equal(t, opened.Session, again.Session)
	read := set(0)
	assert.Equal(t, lowered.LongestTtl, read.LongestTtl)
	assert.Equal(t, lowered.RestoreHoldOff, read.RestoreHoldOff)
	_, err = s.CloseSession(s.ctx,
		&zamokpb.CloseSessionRequest{Session: opened.Session, Secret: long.Secret})
	require.NoError(t, err)
}

// storyQuotas: what would exceed a quota is refused by its name; what is known, and what gives room
// back, is not.
func storyQuotas(t *testing.T, s *sessionOf) {
	set := func(q *zamokpb.Quotas) *zamokpb.SettingsResponse {
		t.Helper()
		settings, err := s.admin.Settings(s.ctx, &zamokpb.SettingsRequest{Quotas: q})
		require.NoError(t, err)
		return settings
	}
	before := set(nil)
	assert.EqualValues(t, 50, before.Quotas.Share)
	defer set(before.Quotas)
	request := s.next("quotas/1", 0)
	_, err := s.Acquire(s.ctx, request)
	require.NoError(t, err)

	now := set(&zamokpb.Quotas{Sessions: 1, Tickets: 1})
	assert.EqualValues(t, 1, now.Quotas.Sessions)
	assert.Equal(t, before.Quotas.Bytes, now.Quotas.Bytes, "0 leaves it as it is")
	assert.GreaterOrEqual(t, now.Used.Sessions, uint64(1))
	refused := func(field string, err error) {
		t.Helper()
		info := infoOf(t, err)
		assert.Equal(t, zamokpb.Code_CODE_LIMIT_EXCEEDED, info.Code)
		assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, info.Outcome)
		assert.Equal(t, field, info.Field)
		assert.Contains(t, info.Message, "zamok settings")
	}
	open := &zamokpb.OpenSessionRequest{Secret: newSecret(), Settings: settings(clock.Minute)}
	_, err = s.OpenSession(asFirst(s.ctx), open)
	refused("total_sessions", err)
	open.Secret = s.secret
	_, err = s.OpenSession(s.ctx, open)
	require.NoError(t, err, "it is known")
	_, err = s.Acquire(asFirst(s.ctx), s.next("quotas/2", 0))
	refused("total_tickets", err)
	again, err := s.Acquire(s.ctx, request)
	require.NoError(t, err, "it is known")
	assert.Equal(t, zamokpb.State_STATE_GRANTED, again.State.State)
	assert.Equal(t, zamokpb.State_STATE_ENDED, s.drop(request.Acquire.Ticket).State)
}

func storyWrongSecret(t *testing.T, s *sessionOf) {
	held := s.hold("else/" + t.Name())
	s.secret = newSecret()
	wrong := func(err error) {
		t.Helper()
		assert.Equal(t, zamokpb.Code_CODE_WRONG_SECRET, infoOf(t, err).Code)
		assert.Equal(t, codes.PermissionDenied, status.Code(err))
	}
	_, err := s.Acquire(s.ctx, s.next("x", 0))
	wrong(err)
	_, err = s.Drop(s.ctx, &zamokpb.DropRequest{Session: s.id, Secret: s.secret,
		Ticket: held.Ticket})
	wrong(err)
	_, err = s.Downgrade(s.ctx,
		&zamokpb.DowngradeRequest{Session: s.id, Secret: s.secret, Ticket: held.Ticket})
	wrong(err)
	_, err = s.RenewSession(s.ctx, &zamokpb.RenewSessionRequest{Session: s.id, Secret: s.secret})
	wrong(err)
	_, err = s.CloseSession(s.ctx, &zamokpb.CloseSessionRequest{Session: s.id, Secret: s.secret})
	wrong(err)
	check, err := s.Check(s.ctx, &zamokpb.CheckRequest{Name: "else/" + t.Name(), Token: held.Token})
	require.NoError(t, err)
	assert.True(t, check.Held)
}

// A follower that is to relay nothing names the leader, and does nothing.
func storyFollower(t *testing.T, leader *Node, c caller) {
	ctx := soon(t)
	isNotLeader := func(err error) {
		t.Helper()
		info := infoOf(t, err)
		assert.Equal(t, zamokpb.Code_CODE_NOT_LEADER, info.Code)
		assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, info.Outcome)
		assert.Equal(t, leader.cfg.ID, info.Leader)
		assert.Equal(t, leader.Client(), info.LeaderAddress)
	}
	_, err := c.OpenSession(asFirst(ctx), &zamokpb.OpenSessionRequest{
		Secret: newSecret(), Settings: &zamokpb.SessionSettings{Ttl: int64(clock.Minute)},
	})
	isNotLeader(err)
	_, err = c.RenewSession(ctx,
		&zamokpb.RenewSessionRequest{Session: 1 << 40, Secret: newSecret()})
	isNotLeader(err)
	s := &sessionOf{id: 1 << 40, secret: newSecret()}
	_, err = c.Acquire(asFirst(ctx), s.next("x", 0))
	isNotLeader(err)
	_, err = c.Get(ctx, &zamokpb.GetRequest{Name: "x"})
	isNotLeader(err)
	_, err = c.Now(ctx, &zamokpb.NowRequest{})
	isNotLeader(err)
	_, err = c.admin.Members(ctx, &zamokpb.MembersRequest{})
	isNotLeader(err)
	_, err = c.admin.Transfer(ctx, &zamokpb.TransferRequest{})
	isNotLeader(err)
	_, err = c.admin.Settings(ctx, &zamokpb.SettingsRequest{})
	isNotLeader(err)
	_, err = c.admin.Settings(ctx, &zamokpb.SettingsRequest{LongestTtl: int64(clock.Hour)})
	isNotLeader(err)
	backup, err := c.admin.Backup(ctx, &zamokpb.BackupRequest{})
	require.NoError(t, err)
	_, err = backup.Recv()
	isNotLeader(err)
	leader.Raft().View(func(m *fsm.Machine) {
		_, opened := m.Session(session.ID(s.id))
		assert.False(t, opened)
	})
}
