package gate

import (
	"cmp"
	"context"
	"reflect"

	"google.golang.org/protobuf/proto"

	"zamok/api/gate/limits"
	"zamok/api/gate/rules"
	"zamok/api/service"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/fsm"
	"zamok/session"
)

// Request is a row of the table: all in which a request of the wire differs from others before the
// log, and on the way back.
type Request struct {
	// Message is an empty request, Method the full name of its call. The messages of a session's
	// stream have no Method, except the one that opens it.
	Message proto.Message
	Method  string

	// call carries out a call with one response, stream one whose response is a stream. One of them
	// is set in a row with a Method.
	call   func(context.Context, *service.Service, proto.Message) (proto.Message, error)
	stream func(context.Context, *Gate, *stream) error

	validate func(*Gate, proto.Message) error
	// Needs returns the verb that the caller must be allowed, for each of the names; without names
	// for at least one. An empty verb: any permission is enough. Nil: it needs none.
	Needs func(proto.Message) (rules.Verb, []string)
	// Counts is the limit under which the request counts while it is open.
	Counts limits.Kind
	// Lasts: it is held open, perhaps without a message. Its caller is checked again meanwhile.
	Lasts bool
	// Local: every node serves it from what it has, and relays it to no other.
	Local bool
	// essential reports whether the request keeps or ends something that there is. It is never
	// refused for load: a session that is not renewed loses its locks, and what ends frees
	// resources. Nil: it is not.
	essential func(proto.Message) bool
	// session returns the session that the request names, and its secret. Id 0, if the request adds
	// to the state: it opens one. Nil: it names none.
	session func(proto.Message) (id uint64, secret []byte)
	// repeats: it is done, too, if the client has closed the session before.
	repeats bool
	// known reports whether the state machine has what an earlier transmission of the request
	// wanted. Then the caller's request needs no room. Nil: a retransmission is a request like the
	// first. A request of a stream belongs to the session.
	known func(m *fsm.Machine, c Caller, in Stream, r proto.Message) bool
	// adds is the command with which the request would add a session or a ticket to the state,
	// where there must be room for it. Nil, or a nil command: it adds none.
	adds func(m *fsm.Machine, c Caller, in Stream, r proto.Message) fsm.Command
	// Acts reports whether the request is an operator's act, which is recorded. Nil: it is not.
	Acts func(proto.Message) bool
	// hide removes from a response what the caller may not see. Nil: all of it may be seen.
	hide func(v view, response proto.Message)
}

// requests has a row for each request of the wire. Validation, permissions, limits,
// retransmissions, relays, redaction and the audit log read it: nothing else distinguishes
// requests. TestEveryRequestHasARow compares it with the services.
var requests = []*Request{
	// Sessions.
	{
		Method:  zamokpb.Zamok_OpenSession_FullMethodName,
		Message: (*zamokpb.OpenSessionRequest)(nil),
		call:    unary((*service.Service).OpenSession),
		validate: check(func(r *zamokpb.OpenSessionRequest) error {
			return checkSessionSettings(r.GetSettings())
		}),
		Needs: some(rules.Lock), known: opened[*zamokpb.OpenSessionRequest],
		adds: addsSession[*zamokpb.OpenSessionRequest],
	},
	{
		Method:  zamokpb.Zamok_RenewSession_FullMethodName,
		Message: (*zamokpb.RenewSessionRequest)(nil),
		call:    unary((*service.Service).RenewSession),
		session: owned[*zamokpb.RenewSessionRequest],
		Needs:   some(rules.Lock), essential: always,
	},
	{
		Method:  zamokpb.Zamok_CloseSession_FullMethodName,
		Message: (*zamokpb.CloseSessionRequest)(nil),
		call:    unary((*service.Service).CloseSession),
		session: owned[*zamokpb.CloseSessionRequest],
		repeats: true,
		Needs:   anything, essential: always,
	},
	// The messages of a session's stream.
	{
		Method: zamokpb.Zamok_Session_FullMethodName, Message: (*zamokpb.OpenStream)(nil),
		stream: serveSession, session: owned[*zamokpb.OpenStream],
		validate: check(checkOpenStream), Needs: some(rules.Lock), Counts: limits.Streams,
		Lasts:     true,
		essential: is(func(r *zamokpb.OpenStream) bool { return r.GetSession() != 0 }),
		known:     opened[*zamokpb.OpenStream], adds: addsSession[*zamokpb.OpenStream],
		hide: hideFrame,
	},
	{
		Message: (*zamokpb.Acquire)(nil), validate: check(checkAcquire),
		Needs: on(rules.Lock, func(r *zamokpb.Acquire) []string { return names(r) }),
		known: requested, adds: addsTicket,
	},
	{Message: (*zamokpb.Drop)(nil), validate: check(checkTicket[*zamokpb.Drop]), Needs: anything,
		essential: always},
	{Message: (*zamokpb.Downgrade)(nil), validate: check(checkTicket[*zamokpb.Downgrade]),
		Needs: some(rules.Lock), essential: always},
	{Message: (*zamokpb.KeepAlive)(nil), Needs: some(rules.Lock), essential: always},
	{Message: (*zamokpb.CloseSession)(nil), essential: always},
	// Locks, without a stream.
	{
		Method: zamokpb.Zamok_Acquire_FullMethodName, Message: (*zamokpb.AcquireRequest)(nil),
		call: unary((*service.Service).Acquire), session: owned[*zamokpb.AcquireRequest],
		validate: check(checkAcquireRequest),
		Needs: on(rules.Lock,
			func(r *zamokpb.AcquireRequest) []string { return names(r.GetAcquire()) }),
		Counts: limits.HeldCalls, Lasts: true, known: acquired, adds: addsEither,
	},
	{
		Method: zamokpb.Zamok_Drop_FullMethodName, Message: (*zamokpb.DropRequest)(nil),
		call: unary((*service.Service).Drop), session: owned[*zamokpb.DropRequest],
		validate: check(checkTicket[*zamokpb.DropRequest]), Needs: anything, essential: always,
	},
	{
		Method: zamokpb.Zamok_Downgrade_FullMethodName, Message: (*zamokpb.DowngradeRequest)(nil),
		call: unary((*service.Service).Downgrade), session: owned[*zamokpb.DowngradeRequest],
		// it renews the session
		validate: check(checkTicket[*zamokpb.DowngradeRequest]), Needs: some(rules.Lock),
		essential: always,
	},
	// Reads.
	{
		Method: zamokpb.Zamok_Get_FullMethodName, Message: (*zamokpb.GetRequest)(nil),
		call: unary((*service.Service).Get), Counts: limits.Reads,
		validate: check(func(r *zamokpb.GetRequest) error {
			return cmp.Or(checkRange("limit", r.GetLimit(), 0, service.ShowMax), checkName(r))
		}),
		Needs: on(rules.Read, name[*zamokpb.GetRequest]), hide: hideGet,
	},
	{
		Method: zamokpb.Zamok_List_FullMethodName, Message: (*zamokpb.ListRequest)(nil),
		call: unary((*service.Service).List), Counts: limits.Reads,
		validate: check(func(r *zamokpb.ListRequest) error {
			return cmp.Or(checkRange("limit", r.GetLimit(), 0, service.ListMax),
				checkText("prefix", r.GetPrefix(), 0, fsm.NameBytesMax),
				checkText("after", r.GetAfter(), 0, fsm.NameBytesMax))
		}),
		Needs: some(rules.Read), hide: hideList,
	},
	{
		Method:  zamokpb.Zamok_ListSessions_FullMethodName,
		Message: (*zamokpb.ListSessionsRequest)(nil),
		call:    unary((*service.Service).ListSessions), Counts: limits.Reads,
		validate: check(func(r *zamokpb.ListSessionsRequest) error {
			return checkRange("limit", r.GetLimit(), 0, service.ListMax)
		}),
		Needs: anything, hide: hideSessions,
	},
	{
		Method: zamokpb.Zamok_Check_FullMethodName, Message: (*zamokpb.CheckRequest)(nil),
		call:     unary((*service.Service).Check),
		validate: check(checkCheck), Needs: on(rules.Read, name[*zamokpb.CheckRequest]),
	},
	{
		Method: zamokpb.Zamok_Now_FullMethodName, Message: (*zamokpb.NowRequest)(nil),
		call: unary((*service.Service).Now), Needs: anything,
	},
	{ // its frames are made without what is hidden
		Method: zamokpb.Zamok_Watch_FullMethodName, Message: (*zamokpb.WatchRequest)(nil),
		stream: serveWatch,
		validate: check(func(r *zamokpb.WatchRequest) error {
			return checkText("prefix", r.GetPrefix(), 0, fsm.NameBytesMax)
		}),
		Needs: some(rules.Watch), Counts: limits.Watches, Lasts: true, Local: true,
	},
	{
		Method: zamokpb.Admin_Members_FullMethodName, Message: (*zamokpb.MembersRequest)(nil),
		call: unary((*service.Service).Members), Counts: limits.Reads, Needs: anything,
	},
	// Operators.
	{
		Method:   zamokpb.Admin_ForceRelease_FullMethodName,
		Message:  (*zamokpb.ForceReleaseRequest)(nil),
		call:     unary((*service.Service).ForceRelease),
		validate: check(checkForceRelease),
		Needs:    on(rules.Release, name[*zamokpb.ForceReleaseRequest]), essential: always,
		Acts: always,
	},
	{
		Method:   zamokpb.Admin_ExpireSession_FullMethodName,
		Message:  (*zamokpb.ExpireSessionRequest)(nil),
		call:     unary((*service.Service).ExpireSession),
		validate: check(checkExpireSession), Needs: some(rules.Operate), essential: always,
		Acts: always,
	},
	{
		Method: zamokpb.Admin_Join_FullMethodName, Message: (*zamokpb.JoinRequest)(nil),
		call:     unary((*service.Service).Join),
		validate: check(checkJoin), Needs: some(rules.Operate), Acts: always,
	},
	{
		Method: zamokpb.Admin_Remove_FullMethodName, Message: (*zamokpb.RemoveRequest)(nil),
		call: unary((*service.Service).Remove),
		validate: func(g *Gate, r proto.Message) error {
			return g.checkMember(r.(*zamokpb.RemoveRequest).GetId())
		},
		Needs: some(rules.Operate), Acts: always,
	},
	{
		Method: zamokpb.Admin_Transfer_FullMethodName, Message: (*zamokpb.TransferRequest)(nil),
		call: unary((*service.Service).Transfer),
		validate: func(g *Gate, r proto.Message) error {
			return g.checkSuccessor(r.(*zamokpb.TransferRequest).GetTo())
		},
		Needs: some(rules.Operate), Acts: always,
	},
	{
		Method: zamokpb.Admin_Settings_FullMethodName, Message: (*zamokpb.SettingsRequest)(nil),
		call: unary((*service.Service).Settings), Counts: limits.Reads,
		validate: check(checkSettings), Needs: settingsNeed, Acts: is(changes), hide: hideSettings,
	},
	{
		Method: zamokpb.Admin_Backup_FullMethodName, Message: (*zamokpb.BackupRequest)(nil),
		stream: serveBackup,
		Needs:  some(rules.Operate), Lasts: true, Acts: always,
	},
}

var byType, byMethod = indexRequests()

func indexRequests() (map[reflect.Type]*Request, map[string]*Request) {
	types, methods := make(map[reflect.Type]*Request), make(map[string]*Request)
	for _, r := range requests {
		types[reflect.TypeOf(r.Message)] = r
		if r.Method != "" {
			methods[r.Method] = r
		}
	}
	return types, methods
}

// unary makes the call of a method of the service.
func unary[M, Response proto.Message](
	serve func(*service.Service, context.Context, M) (Response, error),
) func(context.Context, *service.Service, proto.Message) (proto.Message, error) {
	return func(ctx context.Context, s *service.Service, m proto.Message) (proto.Message, error) {
		return serve(s, ctx, m.(M))
	}
}

// owned is the session of a request with its secret.
func owned[M interface {
	GetSession() uint64
	GetSecret() []byte
}](r proto.Message) (id uint64, secret []byte) {
	return r.(M).GetSession(), r.(M).GetSecret()
}

// Of is the row of a request; nil: there is none.
func Of(request proto.Message) *Request { return byType[reflect.TypeOf(request)] }

// OfMethod is the row of the request that begins a call, by the full name of the call.
func OfMethod(method string) *Request { return byMethod[method] }

func (d *Request) isEssential(r proto.Message) bool {
	return r != nil && d.essential != nil && d.essential(r)
}

// Items is how many locks an acquisition has.
func (d *Request) Items(r proto.Message) int {
	a, _ := r.(interface{ GetAcquire() *zamokpb.Acquire })
	if a == nil {
		return 0
	}
	return len(a.GetAcquire().GetItems())
}

func check[M proto.Message](f func(M) error) func(*Gate, proto.Message) error {
	return func(_ *Gate, m proto.Message) error { return f(m.(M)) }
}

func is[M proto.Message](f func(M) bool) func(proto.Message) bool {
	return func(m proto.Message) bool { return f(m.(M)) }
}

func always(proto.Message) bool { return true }

// some needs a verb for at least one name.
func some(verb rules.Verb) func(proto.Message) (rules.Verb, []string) {
	return func(proto.Message) (rules.Verb, []string) { return verb, nil }
}

// anything needs any permission.
func anything(proto.Message) (rules.Verb, []string) { return "", nil }

// on needs a verb for each of the names of a request.
func on[M proto.Message](verb rules.Verb,
	names func(M) []string) func(proto.Message) (rules.Verb, []string) {
	return func(m proto.Message) (rules.Verb, []string) { return verb, names(m.(M)) }
}

func name[M interface{ GetName() string }](r M) []string { return []string{r.GetName()} }

func names(r *zamokpb.Acquire) (all []string) {
	for _, it := range r.GetItems() {
		all = append(all, it.GetName())
	}
	return all
}

// changes reports whether a request changes settings, or only reads them.
func changes(r *zamokpb.SettingsRequest) bool {
	return r.GetLongestTtl() != 0 || quotasOf(r) != (fsm.Quotas{})
}

// settingsNeed: only operators change settings, or see who uses how much.
func settingsNeed(m proto.Message) (rules.Verb, []string) {
	if r := m.(*zamokpb.SettingsRequest); changes(r) || r.GetIdentities() != 0 {
		return rules.Operate, nil
	}
	return "", nil
}

// opened: a living session was opened with the secret.
func opened[M interface{ GetSecret() []byte }](m *fsm.Machine, _ Caller, _ Stream,
	r proto.Message) bool {
	_, known := m.SessionBySecret(wire.Hash(r.(M).GetSecret()))
	return known
}

// requested: the ticket of a stream's session was requested.
func requested(m *fsm.Machine, _ Caller, in Stream, r proto.Message) bool {
	return hasTicket(m, in.session(m), r.(*zamokpb.Acquire))
}

func hasTicket(m *fsm.Machine, id session.ID, a *zamokpb.Acquire) bool {
	_, known := m.Ticket(fsm.TicketRef{Session: id, Ticket: a.GetTicket()})
	return known
}

// acquired: the session of its own was opened, or the ticket was requested. Callers other than the
// owner of the session get false.
func acquired(m *fsm.Machine, c Caller, in Stream, r proto.Message) bool {
	a := r.(*zamokpb.AcquireRequest)
	if a.GetSession() == 0 {
		return opened[*zamokpb.AcquireRequest](m, c, in, r)
	}
	owned, code := Ownership(m, c, a.GetSession(), a.GetSecret())
	return code == fsm.OK && hasTicket(m, owned.ID, a.GetAcquire())
}

// addsSession: a session, unless the request names one.
func addsSession[M interface {
	GetSecret() []byte
	GetSettings() *zamokpb.SessionSettings
}](_ *fsm.Machine, c Caller, _ Stream, r proto.Message) fsm.Command {
	if in, names := r.(interface{ GetSession() uint64 }); names && in.GetSession() != 0 {
		return nil
	}
	return wire.OpenCommand(wire.Hash(r.(M).GetSecret()), c.Identity, r.(M).GetSettings())
}

// addsTicket: the ticket of a stream's session.
func addsTicket(m *fsm.Machine, _ Caller, in Stream, r proto.Message) fsm.Command {
	return wire.AcquireCommand(in.session(m), in.AckedThrough, r.(*zamokpb.Acquire))
}

// addsEither: the session of its own, or a ticket in the caller's session. A retransmission whose
// session lives adds none: if its ticket is refused then, in the log, its session ends.
func addsEither(m *fsm.Machine, c Caller, in Stream, r proto.Message) fsm.Command {
	a := r.(*zamokpb.AcquireRequest)
	if a.GetSession() == 0 {
		return addsSession[*zamokpb.AcquireRequest](m, c, in, r)
	}
	return wire.AcquireCommand(session.ID(a.GetSession()), a.GetAckedThrough(), a.GetAcquire())
}
