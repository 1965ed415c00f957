package api

import (
	"context"
	"crypto/tls"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"zamok/api/zamokpb"
	"zamok/fsm"
)

// Verb is what somebody wants to do.
type Verb string

// The verbs, and what the name beside each of them is.
const (
	VerbSession  Verb = "session"  // open, attach, renew or close a session; no name
	VerbAcquire  Verb = "acquire"  // a lock's name, asked for each item
	VerbDrop     Verb = "drop"     // drop or downgrade a ticket of one's own session; no name
	VerbGet      Verb = "get"      // a lock's name; also for Check
	VerbList     Verb = "list"     // a prefix; also for Watch
	VerbSessions Verb = "sessions" // list sessions; no name
	VerbNow      Verb = "now"      // read the clock; no name
	VerbForce    Verb = "force"    // release by force: a lock's name; end a session: no name
	VerbMembers  Verb = "members"  // list the nodes; no name
	VerbChange   Verb = "change"   // take a node in or out, hand leadership over: a node's id
	VerbBackup   Verb = "backup"   // no name
)

// Authorize decides whether the caller may do a thing. A nil error lets it; what another error says
// is told to the caller. It is asked before anything is proposed, and must be quick.
type Authorize func(ctx context.Context, verb Verb, name string) error

// allowAll is how it is until access rules exist.
func allowAll(context.Context, Verb, string) error { return nil }

// may asks, and says no in the wire's words.
func (s *Server) may(ctx context.Context, verb Verb, name string) *failure {
	err := s.authorize(ctx, verb, name)
	if err == nil {
		return nil
	}
	if name == "" {
		return fail(zamokpb.Code_CODE_DENIED, "not done: %s is not allowed: %v", verb, err)
	}
	return fail(zamokpb.Code_CODE_DENIED, "not done: %s of %q is not allowed: %v", verb, name, err)
}

// mayAcquire asks for each lock.
func (s *Server) mayAcquire(ctx context.Context, items []fsm.Item) *failure {
	for i := range items {
		if f := s.may(ctx, VerbAcquire, items[i].Name); f != nil {
			return f
		}
	}
	return nil
}

// identity is who opens a session, as far as the connection shows: the name in a certificate that
// was verified, or else the host.
func identity(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
		if name := certificateIdentity(info.State); name != "" {
			return clip(name, fsm.IdentityBytesMax)
		}
	}
	if p.Addr == nil {
		return ""
	}
	host, _, err := net.SplitHostPort(p.Addr.String())
	if err != nil {
		host = p.Addr.String()
	}
	return clip(host, fsm.IdentityBytesMax)
}

func certificateIdentity(state tls.ConnectionState) string {
	if len(state.VerifiedChains) == 0 || len(state.VerifiedChains[0]) == 0 {
		return ""
	}
	return state.VerifiedChains[0][0].Subject.CommonName
}

// clip makes text one that the machine takes as an identity; what it would refuse becomes "".
func clip(text string, most int) string {
	if len(text) > most || wrongText(text, 0, most) != "" {
		return ""
	}
	return text
}
