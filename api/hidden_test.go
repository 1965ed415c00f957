package api

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	"zamok/api/gate/identity"
	"zamok/api/gate/rules"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/session"
)

// tokensFor makes a token for each identity, and what a node knows of them.
func tokensFor(t *testing.T,
	identities ...string) (tokens map[string]string, known identity.Tokens) {
	tokens, known = map[string]string{}, identity.Tokens{}
	for _, who := range identities {
		text, line, err := identity.NewToken(who, time.Time{})
		require.NoError(t, err)
		tokens[who], known[line.ID] = text, line
	}
	return tokens, known
}

// startWithRules starts a node with rules that the test may change, and returns how to call as
// alice, bob and root.
func startWithRules(t *testing.T) (n *Node, inForce *atomic.Pointer[rules.Set],
	as func(who string) context.Context) {
	tokens, known := tokensFor(t, "alice", "bob", "root")
	inForce = new(atomic.Pointer[rules.Set])
	inForce.Store(theseRules(t, `
rules:
  - {identities: [alice], names: [m, x, "p/*"], may: [lock, read, watch]}
  - {identities: [bob, root], names: ["*"], may: [lock, read, watch]}
  - {identities: [root], may: [operate]}
`)())
	n = startCluster(t, 1, func(cfg *NodeConfig) {
		serveHTTP(cfg)
		cfg.Rules, cfg.Audit = inForce.Load, &auditLines{}
		cfg.Identity.Verifier = func() identity.Verifier { return identity.Verifier{Tokens: known} }
	}).leader()
	return n, inForce, func(who string) context.Context {
		return metadata.AppendToOutgoingContext(soon(t), "authorization", "Bearer "+tokens[who])
	}
}

// TestWhatIsHiddenLeavesNoTrace: a caller that may see some locks and sessions can't tell whether
// there are others.
func TestWhatIsHiddenLeavesNoTrace(t *testing.T) {
	t.Parallel()
	n, _, as := startWithRules(t)
	to := call(t, n)
	s := openSession(t, as("bob"), to)
	for _, name := range []string{"a", "m", "m/1", "n", "p", "p/1", "p/2", "q", "x", "y"} {
		s.hold(name)
	}

	t.Run("pages", func(t *testing.T) {
		list := func(prefix, after string, limit uint32) (names []string) {
			answer, err := to.List(as("alice"),
				&zamokpb.ListRequest{Prefix: prefix, After: after, Limit: limit})
			require.NoError(t, err)
			for _, l := range answer.Locks {
				names = append(names, l.Name)
			}
			return names
		}
		assert.Equal(t, []string{"m", "p/1", "p/2", "x"}, list("", "", 0))
		assert.Equal(t, []string{"m", "p/1"}, list("", "", 2))
		assert.Equal(t, []string{"p/2", "x"}, list("", "p/1", 2))
		assert.Equal(t, []string{"x"}, list("", "p/2", 2))
		assert.Empty(t, list("", "x", 2))
		assert.Equal(t, []string{"p/1", "p/2"}, list("p", "n", 10))
		_, err := to.List(as("alice"), &zamokpb.ListRequest{Prefix: "y"})
		assert.Equal(t, zamokpb.Code_CODE_DENIED, infoOf(t, err).Code)
		assert.ErrorContains(t, err, `alice may not read any lock whose name begins with "y"`)
		page := send(soon(t), t, n, "GET", "/v1/locks?limit=3", "", "Authorization",
			shown(as("alice")))
		assert.Equal(t, http.StatusOK, page.code)
		assert.Equal(t, "p/2", page.fields["next"])
	})
	t.Run("sessions", func(t *testing.T) {
		mine := []uint64{openSession(t, as("alice"), to).id}
		openSession(t, as("bob"), to)
		mine = append(mine, openSession(t, as("alice"), to).id)
		var found []uint64
		for after := uint64(0); ; {
			answer, err := to.ListSessions(as("alice"),
				&zamokpb.ListSessionsRequest{After: after, Limit: 1})
			require.NoError(t, err)
			if len(answer.Sessions) == 0 {
				break
			}
			after = answer.Sessions[0].Session
			found = append(found, after)
		}
		assert.Equal(t, mine, found)
		all, err := to.ListSessions(as("root"), &zamokpb.ListSessionsRequest{Limit: 3})
		require.NoError(t, err)
		assert.Len(t, all.Sessions, 3)
	})
	t.Run("usage", func(t *testing.T) {
		used, err := to.admin.Settings(as("root"), &zamokpb.SettingsRequest{Identities: 10})
		require.NoError(t, err)
		require.Len(t, used.Identities, 2)
		most := used.Identities[0]
		assert.Equal(t, "bob", most.Identity, "who uses most is first")
		assert.EqualValues(t, 10, most.Used.Tickets)
		assert.Equal(t, used.Used.Sessions, most.Used.Sessions+used.Identities[1].Used.Sessions)
		assert.Equal(t, used.Used.Bytes, most.Used.Bytes+used.Identities[1].Used.Bytes)
		used, err = to.admin.Settings(as("root"), &zamokpb.SettingsRequest{Identities: 1})
		require.NoError(t, err)
		require.Len(t, used.Identities, 1)
		_, err = to.admin.Settings(as("alice"), &zamokpb.SettingsRequest{Identities: 1})
		assert.Equal(t, zamokpb.Code_CODE_DENIED, infoOf(t, err).Code)
		used, err = to.admin.Settings(as("alice"), &zamokpb.SettingsRequest{})
		require.NoError(t, err)
		assert.Empty(t, used.Identities)
	})
	t.Run("events", func(t *testing.T) {
		_, err := to.List(as("alice"), &zamokpb.ListRequest{}) // the node is up to date
		require.NoError(t, err)
		watch, err := to.Watch(as("alice"), &zamokpb.WatchRequest{})
		require.NoError(t, err)
		first, err := watch.Recv()
		require.NoError(t, err)
		other := openSession(t, as("bob"), to)
		other.hold("secret")
		_, err = to.CloseSession(as("bob"),
			&zamokpb.CloseSessionRequest{Session: other.id, Secret: other.secret})
		require.NoError(t, err)
		seen := s.hold("p/3")
		frame, err := watch.Recv()
		require.NoError(t, err)
		assert.Greater(t, frame.Index, first.Index+1)
		require.Len(t, frame.Events, 1,
			"not even a frame without events: it would say when something happens")
		assert.Equal(t, seen.Token, frame.Events[0].Token)
		denied, err := to.Watch(as("alice"), &zamokpb.WatchRequest{Prefix: "secret"})
		require.NoError(t, err)
		_, err = denied.Recv()
		assert.Equal(t, zamokpb.Code_CODE_DENIED, infoOf(t, err).Code)
	})
}

// TestASessionBelongsToItsIdentity: another identity cannot use it with its secret, nor its own
// identity without lock permission.
func TestASessionBelongsToItsIdentity(t *testing.T) {
	t.Parallel()
	n, inForce, as := startWithRules(t)
	to := call(t, n)
	s := openSession(t, as("bob"), to)
	t.Run("a stolen secret", func(t *testing.T) {
		look := func() (found session.Session) {
			n.Raft().View(func(m *fsm.Machine) { found, _ = m.Session(session.ID(s.id)) })
			return found
		}
		before := look()
		for range 2 {
			_, err := to.OpenSession(as("alice"),
				&zamokpb.OpenSessionRequest{Secret: s.secret, Settings: settings(clock.Minute)})
			require.Equal(t, zamokpb.Code_CODE_WRONG_SECRET, infoOf(t, err).Code)
			_, err = to.RenewSession(as("alice"),
				&zamokpb.RenewSessionRequest{Session: s.id, Secret: s.secret})
			require.Equal(t, zamokpb.Code_CODE_WRONG_SECRET, infoOf(t, err).Code)
		}
		assert.Equal(t, before, look(), "whose session it is not, renews it not")
	})
	t.Run("rules that change", func(t *testing.T) {
		w := openStreamIn(as("alice"), t, to, settings(clock.Minute))
		w.send(exclusive(1, "p/9", 0))
		w.is(1, stateGranted)
		inForce.Store(theseRules(t, `rules: [{identities: [alice], names: ["*"], may: [read]}]`)())
		w.send(keepAlive())
		assert.Equal(t, zamokpb.Code_CODE_DENIED, infoOf(t, w.end()).Code,
			"what may lock nothing is not renewed")
	})
}

// TestAWithdrawnLockProlongsNothing: a caller that may lock nothing any more, and has another
// permission, can release, on a stream and by calls. Nothing that it sends gives its session more
// time.
func TestAWithdrawnLockProlongsNothing(t *testing.T) {
	t.Parallel()
	n, inForce, as := startWithRules(t)
	to := call(t, n)
	w := openStreamIn(as("alice"), t, to, settings(clock.Minute))
	for ticket := uint64(1); ticket <= 3; ticket++ {
		w.send(exclusive(ticket, []string{"", "p/1", "p/2", "p/3"}[ticket], 0))
		w.is(ticket, stateGranted)
	}
	look := func() (found session.Session) {
		n.Raft().View(func(m *fsm.Machine) { found, _ = m.Session(w.hubID()) })
		return found
	}
	before := look()
	inForce.Store(theseRules(t, `rules: [{identities: [alice], names: ["*"], may: [read]}]`)())
	w.send(downgrade(3))
	assert.Equal(t, zamokpb.Code_CODE_DENIED, w.answer().Error.GetCode(),
		"it would renew the session")
	w.send(drop(1))
	w.is(1, zamokpb.State_STATE_ENDED)
	w.send(drop(1))
	assert.Equal(t, zamokpb.State_STATE_ENDED, w.answer().State.State)
	request := &zamokpb.DropRequest{Session: w.Session, Secret: w.Secret, Ticket: 2,
		Sent: []byte("now")}
	dropped, err := to.Drop(as("alice"), request)
	require.NoError(t, err)
	assert.Equal(t, zamokpb.State_STATE_ENDED, dropped.State.State)
	assert.Empty(t, dropped.Sent, "a client takes it for a renewal")
	_, err = to.Downgrade(as("alice"),
		&zamokpb.DowngradeRequest{Session: w.Session, Secret: w.Secret, Ticket: 3})
	assert.Equal(t, zamokpb.Code_CODE_DENIED, infoOf(t, err).Code)
	after := look()
	assert.Equal(t, before.Deadline, after.Deadline)
	assert.Equal(t, before.Renewed, after.Renewed)
	assert.Equal(t, 1, after.Live)
	_, err = to.CloseSession(as("alice"),
		&zamokpb.CloseSessionRequest{Session: w.Session, Secret: w.Secret})
	require.NoError(t, err)
}

// shown is the token of a call's context.
func shown(ctx context.Context) string {
	md, _ := metadata.FromOutgoingContext(ctx)
	return md.Get("authorization")[0]
}
