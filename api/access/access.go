package access

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"unicode"
	"unicode/utf8"

	"zamok/api/access/rules"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/raftnode/peer"
	"zamok/session"
)

// What the state machine limits (fsm/limits.go) is checked here first, so that the answer names the field.
// These limits are the server's own.
const (
	secretBytes      = 16
	sentBytesMax     = 32   // the client's clock, opaque to the server
	FrameMessagesMax = 1024 // messages of one ClientFrame
	ListMax          = 1000 // what one listing returns
	ShowMax          = 200  // holders, and waiters, that Get returns
)

// Guard admits requests. Rules returns the access rules in force, nil without any; Denied is called for each request that they
// deny, with the required verb and the answer. Servers are the nodes of the cluster.
type Guard struct {
	Rules   func() *rules.Set
	Denied  func(ctx context.Context, verb rules.Verb, request any, answer error)
	Servers func() []raftnode.Server
}

// Admit validates a request and checks that its caller may make it. Requests are the messages of the wire,
// also those of a session's stream. Nothing was done if it returns an error.
func (g *Guard) Admit(ctx context.Context, request any) error {
	verb, names, err := g.check(request)
	if err != nil {
		return err
	}
	err = g.authorize(CallerOf(ctx), verb, names, request)
	if err != nil && g.Denied != nil {
		g.Denied(ctx, verb, request, err)
	}
	return err
}

// AdmitOperator checks that a caller may operate, for calls that are not requests of the wire.
func (g *Guard) AdmitOperator(c Caller) error { return g.authorize(c, rules.Operate, nil, nil) }

// MayLock reports whether a caller may hold sessions: without that, it can end what it has and prolong nothing.
func (g *Guard) MayLock(c Caller) bool { return g.Rules().Some(c.forRules(), rules.Lock) }

// MayOperate reports whether a caller may operate.
func (g *Guard) MayOperate(c Caller) bool { return g.Rules().Some(c.forRules(), rules.Operate) }

// IsOperation reports whether a request is an operator's, without those that only read.
func (g *Guard) IsOperation(request any) bool {
	switch r := request.(type) {
	case *zamokpb.ForceReleaseRequest, *zamokpb.ExpireSessionRequest, *zamokpb.JoinRequest, *zamokpb.RemoveRequest,
		*zamokpb.TransferRequest, *zamokpb.BackupRequest:
		return true
	case *zamokpb.SettingsRequest:
		return changes(r)
	}
	return false
}

// changes reports whether a request changes settings, or only reads them.
func changes(r *zamokpb.SettingsRequest) bool {
	return r.LongestTtl != 0 || wire.FromQuotas(r.Quotas) != (fsm.Quotas{})
}

func checkSettings(r *zamokpb.SettingsRequest) error {
	atMost := func(field string, value, limit uint64) error {
		return invalidIf(value > limit, "quotas."+field, "is %d; the maximum is %d", value, limit)
	}
	q := wire.FromQuotas(r.Quotas)
	switch {
	case r.LongestTtl == 0:
		return cmp.Or(atMost("sessions", q.Sessions, fsm.SessionsMax), atMost("tickets", q.Tickets, fsm.QuotaTicketsMax),
			atMost("bytes", q.Bytes, fsm.QuotaBytesMax), atMost("share", uint64(q.Share), fsm.ShareMax))
	case q != (fsm.Quotas{}):
		return wire.Invalid("quotas", "can't be changed together with longest_ttl: change one after the other")
	}
	return checkRange("longest_ttl", clock.Span(r.LongestTtl), fsm.LongestTTLMin, fsm.LongestTTLMax)
}

// authorize checks the rules. Without names, the verb must be allowed for at least one name, with the prefix of the request if
// it has one.
func (g *Guard) authorize(c Caller, verb rules.Verb, names []string, request any) error {
	set := g.Rules()
	switch {
	case set == nil:
		return nil
	case len(names) == 0 && !set.Some(c.forRules(), verb):
		return denied("not done: %s may not %s: %s", c, cmp.Or(verb, "do anything here"), set.Why(c.forRules(), verb, ""))
	}
	if r, ok := request.(interface{ GetPrefix() string }); ok && len(set.Readable(c.forRules(), verb, r.GetPrefix())) == 0 {
		return denied("not done: %s may not %s any lock whose name begins with %q: no rule allows it", c, verb, r.GetPrefix())
	}
	for _, name := range names {
		if !set.May(c.forRules(), verb, name) {
			return denied("not done: %s may not %s %q: %s", c, verb, name, set.Why(c.forRules(), verb, name))
		}
	}
	return nil
}

func denied(format string, args ...any) error {
	return wire.Errorf(zamokpb.Code_CODE_DENIED, format, args...)
}

// check is the table of all requests. It validates a request and returns the verb that its caller needs, for each of the names.
// Without names, the verb must be allowed for at least one name; without a verb, any permission is enough. Listings and
// watches contain only what their caller may see.
func (g *Guard) check(request any) (verb rules.Verb, names []string, err error) {
	if r, ok := request.(owned); ok {
		err = checkOwned(r)
	}
	switch r := request.(type) {
	case *zamokpb.OpenStream:
		if r.GetSession() == 0 {
			err = cmp.Or(err, checkSessionSettings(r.GetSettings()))
		}
		return rules.Lock, nil, err
	case *zamokpb.OpenSessionRequest:
		return rules.Lock, nil, cmp.Or(err, checkSessionSettings(r.Settings))
	case *zamokpb.RenewSessionRequest:
		return rules.Lock, nil, err
	case *zamokpb.AcquireRequest:
		verb, names, wrong := g.check(r.Acquire)
		return verb, names, cmp.Or(err, checkOwnSession(r), wrong)
	case *zamokpb.Acquire:
		if err := checkAcquire(r); err != nil {
			return rules.Lock, nil, err
		}
		for i := 0; i < len(r.Items) && g.Rules() != nil; i++ {
			names = append(names, r.Items[i].Name)
		}
		return rules.Lock, names, nil
	case *zamokpb.TicketRequest, *zamokpb.DropRequest:
		return "", nil, cmp.Or(err, checkTicket(r.(interface{ GetTicket() uint64 }).GetTicket()))
	case *zamokpb.DowngradeRequest: // it renews the session
		return rules.Lock, nil, cmp.Or(err, checkTicket(r.Ticket))
	case *zamokpb.GetRequest:
		return rules.Read, []string{r.Name}, cmp.Or(checkRange("limit", r.Limit, 0, ShowMax), checkText("name", r.Name, 1, fsm.NameBytesMax))
	case *zamokpb.ListRequest:
		return rules.Read, nil, cmp.Or(checkRange("limit", r.Limit, 0, ListMax),
			checkText("prefix", r.Prefix, 0, fsm.NameBytesMax), checkText("after", r.After, 0, fsm.NameBytesMax))
	case *zamokpb.ListSessionsRequest:
		return "", nil, checkRange("limit", r.Limit, 0, ListMax)
	case *zamokpb.CheckRequest:
		return rules.Read, []string{r.Name}, cmp.Or(checkText("name", r.Name, 1, fsm.NameBytesMax),
			invalidIf(r.Token == 0, "token", "is 0, which no grant has"),
			invalidIf((r.Session == 0) != (r.Ticket == 0), "ticket", "session and ticket name a grant together: give both or none"))
	case *zamokpb.WatchRequest:
		return rules.Watch, nil, checkText("prefix", r.Prefix, 0, fsm.NameBytesMax)
	case *zamokpb.ForceReleaseRequest:
		return rules.Release, []string{r.Name}, cmp.Or(checkText("name", r.Name, 1, fsm.NameBytesMax),
			invalidIf(r.Token == 0, "token", "is 0: give the token that you saw, so that no grant ends that you did not see"),
			checkText("reason", r.Reason, 0, fsm.ReasonBytesMax))
	case *zamokpb.ExpireSessionRequest:
		return rules.Operate, nil, cmp.Or(checkText("reason", r.Reason, 0, fsm.ReasonBytesMax),
			invalidIf(r.Session == 0, "session", "is 0, which no session has"))
	case *zamokpb.JoinRequest:
		return rules.Operate, nil, checkJoin(r)
	case *zamokpb.RemoveRequest:
		return rules.Operate, nil, g.checkMember(r.Id)
	case *zamokpb.TransferRequest:
		if r.To != "" {
			err = g.checkMember(r.To)
		}
		return rules.Operate, nil, err
	case *zamokpb.CloseSessionRequest, *zamokpb.NowRequest, *zamokpb.MembersRequest:
		return "", nil, err
	case *zamokpb.SettingsRequest:
		if !changes(r) && r.Identities == 0 {
			return "", nil, nil
		}
		return rules.Operate, nil, cmp.Or(checkSettings(r), checkRange("identities", r.Identities, 0, ListMax))
	case *zamokpb.BackupRequest:
		return rules.Operate, nil, nil
	}
	return "", nil, wire.Errorf(zamokpb.Code_CODE_INTERNAL, "not done: this node has no rule for a %T", request)
}

func invalidIf(wrong bool, field, format string, args ...any) error {
	if wrong {
		return wire.Invalid(field, format, args...)
	}
	return nil
}

// owned is a request with the secret of its session.
type owned interface{ GetSecret() []byte }

// checkOwned checks the secret, and what the request carries of the client's clock.
func checkOwned(r owned) error {
	if n := len(r.GetSecret()); n != secretBytes {
		return wire.Invalid("secret", "has %d bytes, not %d random ones", n, secretBytes)
	}
	if r, ok := r.(interface{ GetSent() []byte }); ok {
		return checkBytes("sent", r.GetSent(), sentBytesMax, "carried")
	}
	return nil
}

// checkBytes checks bytes that are opaque to the server.
func checkBytes(field string, b []byte, most int, verb string) error {
	if len(b) > most {
		return wire.Invalid(field, "has %d bytes, at most %d are %s", len(b), most, verb)
	}
	return nil
}

// Hash is what the cluster knows of a secret.
func Hash(secret []byte) session.Hash { return sha256.Sum256(secret) }

// CheckFrame checks what belongs to a frame as a whole; an error ends the stream.
func CheckFrame(p *zamokpb.ClientFrame) error {
	if n := len(p.GetMessages()); n > FrameMessagesMax {
		return wire.Invalid("messages", "are %d, at most %d come in one frame", n, FrameMessagesMax)
	}
	return checkBytes("sent", p.GetSent(), sentBytesMax, "carried")
}

// checkSettings checks what opens a session.
func checkSessionSettings(p *zamokpb.SessionSettings) error {
	return cmp.Or(
		invalidIf(p == nil, "settings", "are missing: ttl is required"),
		checkRange("settings.ttl", clock.Span(p.GetTtl()), fsm.TTLMin, fsm.LongestTTLMax), // the state machine knows the longest in force
		checkRange("settings.lock_delay", clock.Span(p.GetLockDelay()), 0, fsm.DelayMax),
		checkRange("settings.release_on_disconnect", clock.Span(p.GetReleaseOnDisconnect()), 0, fsm.GraceMax),
		checkBytes("settings.metadata", p.GetMetadata(), fsm.MetadataBytesMax, "kept"),
		checkText("settings.label", p.GetLabel(), 0, fsm.LabelBytesMax))
}

// checkOwnSession checks what an acquisition has beside its locks: a session of its own has settings and one ticket, since
// it ends with that.
func checkOwnSession(r *zamokpb.AcquireRequest) error {
	err := checkRange("respond_within", clock.Span(r.RespondWithin), 0, fsm.SpanMax)
	if ticket := r.Acquire.GetTicket(); r.Session == 0 {
		err = cmp.Or(err, checkSessionSettings(r.Settings),
			invalidIf(ticket > 1, "ticket", "is %d: a session of its own has ticket 1 only, and ends with it", ticket))
	}
	return err
}

func checkRange[T cmp.Ordered](field string, v, least, most T) error {
	if v < least || v > most {
		return wire.Invalid(field, "is %v, which is not between %v and %v", v, least, most)
	}
	return nil
}

// OpenCommand converts settings that were admitted.
func OpenCommand(secret session.Hash, identity string, p *zamokpb.SessionSettings) *fsm.OpenSession {
	return &fsm.OpenSession{Secret: secret, Settings: session.Settings{
		Identity: identity, Label: p.Label, Metadata: string(p.Metadata), TTL: clock.Span(p.Ttl),
		LockDelay: clock.Span(p.LockDelay), Grace: clock.Span(p.ReleaseOnDisconnect),
	}}
}

// AcquireCommand converts an acquisition that was admitted; one of a single lock in one piece of memory.
func AcquireCommand(id session.ID, ackedThrough uint64, p *zamokpb.Acquire) *fsm.Acquire {
	a := new(struct {
		fsm.Acquire
		one [1]fsm.Item
	})
	a.Acquire = fsm.Acquire{
		Session: id, Ticket: p.GetTicket(), AckedThrough: ackedThrough,
		WaitFor: clock.Span(p.GetWaitFor()), MaxHold: clock.Span(p.GetMaxHold()),
		Owner: p.GetOwner(), Metadata: string(p.GetMetadata()), Items: a.one[:0],
	}
	for _, it := range p.GetItems() {
		a.Items = append(a.Items, fsm.Item{Name: it.Name, Mode: fsm.Mode(it.Mode), Permits: it.Permits, Limit: it.Limit})
	}
	return &a.Acquire
}

// checkAcquire checks an acquisition.
func checkAcquire(p *zamokpb.Acquire) error {
	items, waitFor := p.GetItems(), clock.Span(p.GetWaitFor())
	switch {
	case p.GetTicket() == 0:
		return checkTicket(0)
	case len(items) == 0 || len(items) > fsm.ItemsMax:
		return wire.Invalid("items", "are %d, not 1 to %d locks", len(items), fsm.ItemsMax)
	case waitFor != fsm.Forever && (waitFor < 0 || waitFor > fsm.SpanMax):
		return wire.Invalid("wait_for", "is %v, which is neither -1 (forever) nor between 0 and %v", waitFor, fsm.SpanMax)
	}
	if err := cmp.Or(
		checkRange("max_hold", clock.Span(p.MaxHold), 0, fsm.SpanMax),
		checkBytes("metadata", p.Metadata, fsm.MetadataBytesMax, "kept"),
		checkText("owner", p.Owner, 0, fsm.OwnerBytesMax)); err != nil {
		return err
	}
	for i, it := range items {
		err := checkItem(it)
		same := func(other *zamokpb.Item) bool { return other.GetName() == it.GetName() }
		if err == nil && slices.ContainsFunc(items[:i], same) { // at most 64
			err = wire.Invalid("name", "%q is asked for twice", it.Name)
		}
		if err != nil {
			return wire.Inside(fmt.Sprintf("items[%d].", i), err)
		}
	}
	return nil
}

// checkItem checks one lock of an acquisition.
func checkItem(it *zamokpb.Item) error {
	err := cmp.Or(
		checkText("name", it.GetName(), 1, fsm.NameBytesMax),
		checkRange("mode", it.GetMode(), zamokpb.Mode_MODE_EXCLUSIVE, zamokpb.Mode_MODE_PERMITS))
	limit, permits := it.GetLimit(), it.GetPermits()
	if it.GetMode() == zamokpb.Mode_MODE_PERMITS {
		return cmp.Or(err, checkRange("limit", limit, 1, fsm.PermitsMax), checkRange("permits", permits, 1, limit))
	}
	return cmp.Or(err, invalidIf(permits != 0 || limit != 0, "permits", "is set, and the mode is not MODE_PERMITS"))
}

func checkTicket(ticket uint64) error {
	return invalidIf(ticket == 0, "ticket", "is 0: tickets are numbered from 1")
}

func checkText(field, text string, bytesMin, bytesMax int) error {
	switch {
	case len(text) < bytesMin:
		return wire.Invalid(field, "is empty")
	case len(text) > bytesMax:
		return wire.Invalid(field, "has %d bytes, at most %d are allowed", len(text), bytesMax)
	case !utf8.ValidString(text):
		return wire.Invalid(field, "is not UTF-8")
	}
	for i, r := range text {
		if unicode.IsControl(r) {
			return wire.Invalid(field, "has the control character %U at byte %d", r, i)
		}
	}
	return nil
}

func checkJoin(r *zamokpb.JoinRequest) error {
	wrongID := peer.CheckID(r.Id)
	list, wrongPeer := peer.ParseList(r.Id + "=" + r.Peer)
	return cmp.Or(
		invalidIf(wrongID != nil, "id", "%v", wrongID),
		invalidIf(wrongPeer != nil, "peer", "%v", wrongPeer),
		invalidIf(len(list.Nodes()) != 1, "peer", "%q is more than one address", r.Peer))
}

// checkMember checks that the cluster has a node, as far as this one knows.
func (g *Guard) checkMember(id string) error {
	known := slices.ContainsFunc(g.Servers(), func(s raftnode.Server) bool { return s.ID == id })
	return invalidIf(!known, "id", "%q is no node of this cluster, as far as this node knows", id)
}
