package access

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"
	"unicode"
	"unicode/utf8"

	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
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

// Guard admits requests. Timeout is the election timeout in force, Members the nodes of the cluster.
type Guard struct {
	Authorize Authorize
	Timeout   func() time.Duration
	Members   func() []string
}

// Admit validates a request and checks that its caller may make it. Requests are the messages of the wire,
// also those of a session's stream. Nothing was done if it returns an error.
func (g *Guard) Admit(ctx context.Context, request any) error {
	verb, names, err := g.check(request)
	if err != nil {
		return err
	}
	if _, unary := request.(*zamokpb.AcquireRequest); unary { // a stream was asked for this when it was opened
		if err := g.Authorize.check(ctx, VerbSession, ""); err != nil {
			return err
		}
	}
	for _, name := range names {
		if err := g.Authorize.check(ctx, verb, name); err != nil {
			return err
		}
	}
	return nil
}

// noName is the list of names to authorize for a request that is about no name.
var noName = []string{""}

// check is the table of all requests: which checks each has, and what it is to be authorized for.
func (g *Guard) check(request any) (verb Verb, names []string, err error) {
	switch r := request.(type) {
	case *zamokpb.OpenStream:
		if err = checkSecret(r.GetSecret()); err == nil && r.Session == 0 {
			err = g.checkSettings(r.Settings)
		}
		return VerbSession, noName, err
	case *zamokpb.OpenSessionRequest:
		return VerbSession, noName, cmp.Or(checkSecret(r.Secret), checkSent(r.Sent), g.checkSettings(r.Settings))
	case *zamokpb.RenewSessionRequest:
		return VerbSession, noName, cmp.Or(checkSecret(r.Secret), checkSent(r.Sent))
	case *zamokpb.CloseSessionRequest:
		return VerbSession, noName, checkSecret(r.Secret)
	case *zamokpb.AcquireRequest:
		verb, names, err = g.check(r.Acquire)
		return verb, names, cmp.Or(err, checkSecret(r.Secret), checkSent(r.Sent))
	case *zamokpb.Acquire:
		if err := checkAcquire(r); err != nil {
			return VerbAcquire, nil, err
		}
		for i := 0; i < len(r.Items) && g.Authorize != nil; i++ {
			names = append(names, r.Items[i].Name)
		}
		return VerbAcquire, names, nil
	case *zamokpb.TicketRequest:
		return VerbDrop, noName, checkTicket(r.GetTicket())
	case *zamokpb.DropRequest:
		return VerbDrop, noName, cmp.Or(checkTicket(r.Ticket), checkSecret(r.Secret), checkSent(r.Sent))
	case *zamokpb.DowngradeRequest:
		return VerbDrop, noName, cmp.Or(checkTicket(r.Ticket), checkSecret(r.Secret), checkSent(r.Sent))
	case *zamokpb.GetRequest:
		return VerbGet, []string{r.Name}, cmp.Or(checkLimit(r.Limit, ShowMax), checkName(r.Name))
	case *zamokpb.ListRequest:
		return VerbList, []string{r.Prefix}, cmp.Or(checkLimit(r.Limit, ListMax),
			checkText("prefix", r.Prefix, fsm.NameBytesMax), checkText("after", r.After, fsm.NameBytesMax))
	case *zamokpb.ListSessionsRequest:
		return VerbSessions, noName, checkLimit(r.Limit, ListMax)
	case *zamokpb.CheckRequest:
		return VerbGet, []string{r.Name}, cmp.Or(checkName(r.Name), invalidIf(r.Token == 0, "token", "is 0, which no grant has"),
			invalidIf((r.Session == 0) != (r.Ticket == 0), "ticket", "session and ticket name a grant together: give both or none"))
	case *zamokpb.NowRequest:
		return VerbNow, noName, nil
	case *zamokpb.WatchRequest:
		return VerbList, []string{r.Prefix}, checkText("prefix", r.Prefix, fsm.NameBytesMax)
	case *zamokpb.ForceReleaseRequest:
		return VerbForce, []string{r.Name}, cmp.Or(checkName(r.Name),
			invalidIf(r.Token == 0, "token", "is 0: give the token that you saw, so that no grant ends that you did not see"),
			checkText("reason", r.Reason, fsm.ReasonBytesMax))
	case *zamokpb.ExpireSessionRequest:
		return VerbForce, noName, cmp.Or(checkText("reason", r.Reason, fsm.ReasonBytesMax),
			invalidIf(r.Session == 0, "session", "is 0, which no session has"))
	case *zamokpb.MembersRequest:
		return VerbMembers, noName, nil
	case *zamokpb.JoinRequest:
		return VerbChange, []string{r.Id}, checkJoin(r)
	case *zamokpb.RemoveRequest:
		return VerbChange, []string{r.Id}, g.checkMember(r.Id)
	case *zamokpb.TransferRequest:
		if r.To != "" {
			err = g.checkMember(r.To)
		}
		return VerbChange, []string{r.To}, err
	case *zamokpb.BackupRequest:
		return VerbBackup, noName, nil
	}
	return "", nil, wire.Errorf(zamokpb.Code_CODE_INTERNAL, "not done: this node has no rule for a %T", request)
}

func invalidIf(wrong bool, field, reason string) error {
	if wrong {
		return wire.Invalid(field, "%s", reason)
	}
	return nil
}

func checkSecret(secret []byte) error {
	if len(secret) != secretBytes {
		return wire.Invalid("secret", "has %d bytes, not %d random ones", len(secret), secretBytes)
	}
	return nil
}

// Hash is what the cluster knows of a secret.
func Hash(secret []byte) session.Hash { return sha256.Sum256(secret) }

func checkSent(sent []byte) error {
	if len(sent) > sentBytesMax {
		return wire.Invalid("sent", "has %d bytes, at most %d are carried", len(sent), sentBytesMax)
	}
	return nil
}

// CheckFrame checks what belongs to a frame as a whole; an error ends the stream.
func CheckFrame(p *zamokpb.ClientFrame) error {
	if n := len(p.GetMessages()); n > FrameMessagesMax {
		return wire.Invalid("messages", "are %d, at most %d come in one frame", n, FrameMessagesMax)
	}
	return checkSent(p.GetSent())
}

// ttlTimeouts is the shortest ttl of a session in election timeouts. A failover takes two to four, and a
// session that renews each third has 0.6 of its ttl left: below four most failovers would end it, and from
// six on few.
const ttlTimeouts = 4

// TTLMin is the shortest ttl that is accepted with an election timeout.
func TTLMin(timeout time.Duration) clock.Span {
	return max(ttlTimeouts*clock.FromDuration(timeout), fsm.TTLMin)
}

// checkSettings checks what opens a session.
func (g *Guard) checkSettings(p *zamokpb.SessionSettings) error {
	ttl, delay, grace := clock.Span(p.GetTtl()), clock.Span(p.GetLockDelay()), clock.Span(p.GetReleaseOnDisconnect())
	timeout := g.Timeout()
	switch {
	case p == nil:
		return wire.Invalid("settings", "are missing: ttl is required")
	case ttl < fsm.TTLMin || ttl > fsm.TTLMax:
		return outside("settings.ttl", ttl, fsm.TTLMin, fsm.TTLMax)
	case ttl < TTLMin(timeout):
		return wire.Invalid("settings.ttl", "is %v, and most failovers would end the session: the cluster's election timeout is %v, "+
			"so a ttl is %v at least (--ttl, client.Config.TTL)", ttl, timeout, TTLMin(timeout))
	case delay < 0 || delay > fsm.DelayMax:
		return outside("settings.lock_delay", delay, 0, fsm.DelayMax)
	case grace < 0 || grace > fsm.GraceMax:
		return outside("settings.release_on_disconnect", grace, 0, fsm.GraceMax)
	}
	return cmp.Or(checkMetadata("settings.metadata", p.Metadata), checkText("settings.label", p.Label, fsm.LabelBytesMax))
}

func outside(field string, value, least, most any) error {
	return wire.Invalid(field, "is %v, which is not between %v and %v", value, least, most)
}

func checkMetadata(field string, metadata []byte) error {
	if len(metadata) > fsm.MetadataBytesMax {
		return wire.Invalid(field, "has %d bytes, at most %d are kept", len(metadata), fsm.MetadataBytesMax)
	}
	return nil
}

// OpenCommand converts settings that were admitted.
func OpenCommand(secret session.Hash, identity string, p *zamokpb.SessionSettings) *fsm.OpenSession {
	return &fsm.OpenSession{Secret: secret, Settings: wire.SettingsFrom(identity, p)}
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
	waitFor, maxHold := clock.Span(p.GetWaitFor()), clock.Span(p.GetMaxHold())
	items := p.GetItems()
	switch {
	case p.GetTicket() == 0:
		return checkTicket(0)
	case len(items) == 0 || len(items) > fsm.ItemsMax:
		return wire.Invalid("items", "are %d, not 1 to %d locks", len(items), fsm.ItemsMax)
	case waitFor != fsm.Forever && (waitFor < 0 || waitFor > fsm.SpanMax):
		return wire.Invalid("wait_for", "is %v, which is neither -1 (for ever) nor between 0 and %v", waitFor, fsm.SpanMax)
	case maxHold < 0 || maxHold > fsm.SpanMax:
		return outside("max_hold", maxHold, 0, fsm.SpanMax)
	}
	if err := cmp.Or(checkMetadata("metadata", p.Metadata), checkText("owner", p.Owner, fsm.OwnerBytesMax)); err != nil {
		return err
	}
	for i, it := range items {
		if field, reason := wrongItem(it); reason != "" {
			return wire.Invalid(fmt.Sprintf("items[%d].%s", i, field), "%s", reason)
		}
		same := func(other *zamokpb.Item) bool { return other.Name == it.Name }
		if slices.ContainsFunc(items[:i], same) { // at most 64
			return wire.Invalid(fmt.Sprintf("items[%d].name", i), "%q is asked for twice", it.Name)
		}
	}
	return nil
}

// wrongItem returns the field of an item that is wrong, and what is wrong with it.
func wrongItem(it *zamokpb.Item) (field, reason string) {
	if reason := wrongText(it.GetName(), 1, fsm.NameBytesMax); reason != "" {
		return "name", reason
	}
	switch it.Mode {
	case zamokpb.Mode_MODE_EXCLUSIVE, zamokpb.Mode_MODE_SHARED:
		if it.Permits != 0 || it.Limit != 0 {
			return "permits", "is set, and the mode is not MODE_PERMITS"
		}
	case zamokpb.Mode_MODE_PERMITS:
		if it.Limit == 0 || it.Limit > fsm.PermitsMax {
			return "limit", fmt.Sprintf("is %d, which is not between 1 and %d", it.Limit, fsm.PermitsMax)
		}
		if it.Permits == 0 || it.Permits > it.Limit {
			return "permits", fmt.Sprintf("is %d, which is not between 1 and the limit of %d", it.Permits, it.Limit)
		}
	default:
		return "mode", fmt.Sprintf("is %v, which is none that this server knows", it.Mode)
	}
	return "", ""
}

func checkTicket(ticket uint64) error {
	return invalidIf(ticket == 0, "ticket", "is 0: tickets are numbered from 1")
}

// checkName checks the name of a lock.
func checkName(name string) error {
	if reason := wrongText(name, 1, fsm.NameBytesMax); reason != "" {
		return wire.Invalid("name", "%s", reason)
	}
	return nil
}

// checkText checks a text that may be empty.
func checkText(field, text string, bytesMax int) error {
	if reason := wrongText(text, 0, bytesMax); reason != "" {
		return wire.Invalid(field, "%s", reason)
	}
	return nil
}

func checkLimit(limit uint32, most int) error {
	if limit > uint32(most) {
		return wire.Invalid("limit", "is %d, and at most %d are listed at once", limit, most)
	}
	return nil
}

func checkJoin(r *zamokpb.JoinRequest) error {
	if err := peer.CheckID(r.Id); err != nil {
		return wire.Invalid("id", "%v", err)
	}
	list, err := peer.ParseList(r.Id + "=" + r.Peer)
	switch {
	case err != nil:
		return wire.Invalid("peer", "%v", err)
	case len(list.Nodes()) != 1:
		return wire.Invalid("peer", "%q is more than one address", r.Peer)
	}
	return nil
}

// checkMember checks that the cluster has a node, as far as this one knows.
func (g *Guard) checkMember(id string) error {
	if slices.Contains(g.Members(), id) {
		return nil
	}
	return wire.Invalid("id", "%q is no node of this cluster, as far as this node knows", id)
}

// wrongText returns what is wrong with a text, or "".
func wrongText(s string, bytesMin, bytesMax int) string {
	switch {
	case len(s) < bytesMin:
		return "is empty"
	case len(s) > bytesMax:
		return fmt.Sprintf("has %d bytes, at most %d are allowed", len(s), bytesMax)
	case !utf8.ValidString(s):
		return "is not UTF-8"
	}
	for i, r := range s {
		if unicode.IsControl(r) {
			return fmt.Sprintf("has the control character %U at byte %d", r, i)
		}
	}
	return ""
}
