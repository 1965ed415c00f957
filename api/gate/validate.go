package gate

import (
	"cmp"
	"slices"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"zamok/api/service"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/raftnode/peer"
)

// What the state machine limits (fsm/limits.go) is checked here first, so that the answer names the
// field. These limits are the server's own.
const (
	secretBytes      = 16
	sentBytesMax     = 32   // the client's clock, opaque to the server
	FrameMessagesMax = 1024 // messages of one ClientFrame
)

// validate checks every field of a request.
func (g *Gate) validate(d *Request, request proto.Message) error {
	if r, ok := request.(secretive); ok {
		if err := checkSecret(r); err != nil {
			return err
		}
	}
	if d.validate == nil {
		return nil
	}
	return d.validate(g, request)
}

func invalidIf(wrong bool, field, format string, args ...any) error {
	if wrong {
		return wire.Invalid(field, format, args...)
	}
	return nil
}

// secretive is a request with the secret of its session.
type secretive interface{ GetSecret() []byte }

// checkSecret checks the secret, and what the request carries of the client's clock.
func checkSecret(r secretive) error {
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

// checkFrame checks what belongs to a frame as a whole; an error ends the stream.
func checkFrame(p *zamokpb.ClientFrame) error {
	if n := len(p.GetMessages()); n > FrameMessagesMax {
		return wire.Invalid("messages", "are %d, at most %d come in one frame", n, FrameMessagesMax)
	}
	return checkBytes("sent", p.GetSent(), sentBytesMax, "carried")
}

// checkSessionSettings checks what opens a session.
func checkSessionSettings(p *zamokpb.SessionSettings) error {
	return cmp.Or(
		invalidIf(p == nil, "settings", "are missing: ttl is required"),
		// the state machine knows the longest in force
		checkRange("ttl", clock.Span(p.GetTtl()), fsm.TTLMin, fsm.LongestTTLMax),
		checkRange("lock_delay", clock.Span(p.GetLockDelay()), 0, fsm.DelayMax),
		checkRange("release_on_disconnect", clock.Span(p.GetReleaseOnDisconnect()), 0,
			fsm.ReleaseOnDisconnectMax),
		checkBytes("meta", p.GetMeta(), fsm.MetaBytesMax, "kept"),
		checkText("label", p.GetLabel(), 0, fsm.LabelBytesMax))
}

// checkOpenStream checks the settings of a session that the stream opens.
func checkOpenStream(r *zamokpb.OpenStream) error {
	if r.GetSession() != 0 {
		return nil
	}
	return checkSessionSettings(r.GetSettings())
}

// checkAcquireRequest checks an acquisition, and what it has beside its locks: a session of its own
// has settings and one ticket, since it ends with that.
func checkAcquireRequest(r *zamokpb.AcquireRequest) error {
	err := checkRange("poll", clock.Span(r.GetPoll()), 0, fsm.SpanMax)
	if ticket := r.GetAcquire().GetTicket(); r.GetSession() == 0 {
		err = cmp.Or(err, checkSessionSettings(r.GetSettings()),
			invalidIf(ticket > 1, "ticket",
				"is %d: a session of its own has ticket 1 only, and ends with it", ticket))
	}
	return cmp.Or(err, checkAcquire(r.GetAcquire()))
}

func checkRange[T cmp.Ordered](field string, v, least, most T) error {
	if v < least || v > most {
		return wire.Invalid(field, "is %v, which is not between %v and %v", v, least, most)
	}
	return nil
}

// checkSettings checks a change of settings: of the longest ttl, or of quotas.
func checkSettings(r *zamokpb.SettingsRequest) error {
	if err := checkRange("identities", r.GetIdentities(), 0, service.ListMax); err != nil ||
		!changes(r) {
		return err
	}
	atMost := func(field string, value, limit uint64) error {
		return invalidIf(value > limit, "quotas."+field, "is %d; the maximum is %d", value, limit)
	}
	q := quotasOf(r)
	switch {
	case r.LongestTtl == 0:
		return cmp.Or(atMost("sessions", q.Sessions, fsm.SessionsMax),
			atMost("tickets", q.Tickets, fsm.QuotaTicketsMax),
			atMost("bytes", q.Bytes, fsm.QuotaBytesMax),
			atMost("share", uint64(q.Share), fsm.ShareMax))
	case q != (fsm.Quotas{}):
		return wire.Invalid("quotas",
			"can't be changed together with longest_ttl: change one after the other")
	}
	return checkRange("longest_ttl", clock.Span(r.LongestTtl), fsm.LongestTTLMin, fsm.LongestTTLMax)
}

// checkAcquire checks an acquisition.
func checkAcquire(p *zamokpb.Acquire) error {
	items, wait := p.GetItems(), clock.Span(p.GetWait())
	switch {
	case p.GetTicket() == 0:
		return checkTicket(p)
	case len(items) == 0 || len(items) > fsm.ItemsMax:
		return wire.Invalid("items", "are %d, not 1 to %d locks", len(items), fsm.ItemsMax)
	case wait != fsm.Forever && (wait < 0 || wait > fsm.SpanMax):
		return wire.Invalid("wait", "is %v, which is neither -1 (forever) nor between 0 and %v",
			wait, fsm.SpanMax)
	}
	if err := cmp.Or(
		checkRange("max_hold", clock.Span(p.MaxHold), 0, fsm.SpanMax),
		checkBytes("meta", p.Meta, fsm.MetaBytesMax, "kept"),
		checkText("owner", p.Owner, 0, fsm.OwnerBytesMax)); err != nil {
		return err
	}
	for i, it := range items {
		err := checkItem(it)
		same := func(other *zamokpb.Item) bool { return other.GetName() == it.GetName() }
		if err == nil && slices.ContainsFunc(items[:i], same) { // at most 64
			err = wire.Invalid("name", "%q occurs twice", it.Name)
		}
		if err != nil {
			return wire.InItem(i, len(items), err)
		}
	}
	return nil
}

// checkItem checks one lock of an acquisition.
func checkItem(it *zamokpb.Item) error {
	err := cmp.Or(
		checkText("name", it.GetName(), 1, fsm.NameBytesMax),
		checkRange("mode", it.GetMode(), zamokpb.Mode_MODE_EXCLUSIVE, zamokpb.Mode_MODE_PERMITS))
	of, permits := it.GetOf(), it.GetPermits()
	if it.GetMode() == zamokpb.Mode_MODE_PERMITS {
		return cmp.Or(err, checkRange("of", of, 1, fsm.PermitsMax),
			checkRange("permits", permits, 1, of))
	}
	return cmp.Or(err, invalidIf(permits != 0 || of != 0, "permits",
		"is set, and the mode is not permits"))
}

func checkTicket[M interface{ GetTicket() uint64 }](r M) error {
	return invalidIf(r.GetTicket() == 0, "ticket", "is 0: tickets are numbered from 1")
}

func checkName[M interface{ GetName() string }](r M) error {
	return checkText("name", r.GetName(), 1, fsm.NameBytesMax)
}

func checkCheck(r *zamokpb.CheckRequest) error {
	return cmp.Or(checkName(r),
		invalidIf(r.GetToken() == 0, "token", "is 0, which no grant has"),
		invalidIf((r.GetSession() == 0) != (r.GetTicket() == 0), "ticket",
			"session and ticket name a grant together: give both or none"))
}

func checkForceRelease(r *zamokpb.ForceReleaseRequest) error {
	return cmp.Or(checkName(r),
		invalidIf(r.GetToken() == 0, "token",
			"is 0: give the token that you saw, so that no grant ends that you did not see"),
		checkText("reason", r.GetReason(), 0, fsm.ReasonBytesMax))
}

func checkExpireSession(r *zamokpb.ExpireSessionRequest) error {
	return cmp.Or(checkText("reason", r.GetReason(), 0, fsm.ReasonBytesMax),
		invalidIf(r.GetSession() == 0, "session", "is 0, which no session has"))
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
	wrongID := peer.CheckID(r.GetId())
	list, wrongPeer := peer.ParseList(r.GetId() + "=" + r.GetPeer())
	return cmp.Or(
		invalidIf(wrongID != nil, "id", "%v", wrongID),
		invalidIf(wrongPeer != nil, "peer", "%v", wrongPeer),
		invalidIf(len(list.Nodes()) != 1, "peer", "%q is more than one address", r.GetPeer()))
}

// checkSuccessor checks the node that is to lead; "": any.
func (g *Gate) checkSuccessor(id string) error {
	if id == "" {
		return nil
	}
	return g.checkMember(id)
}

// checkMember checks that the cluster has a node, as far as this one knows.
func (g *Gate) checkMember(id string) error {
	known := slices.ContainsFunc(g.node.Servers(),
		func(s raftnode.Server) bool { return s.ID == id })
	return invalidIf(!known, "id", "%q is no node of this cluster, as far as this node knows", id)
}

// quotasOf are the quotas that a request sets.
func quotasOf(r *zamokpb.SettingsRequest) fsm.Quotas { return wire.FromQuotas(r.GetQuotas()) }
