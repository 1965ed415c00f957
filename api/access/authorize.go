package access

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/fsm"
)

// Verb is the kind of a request.
type Verb string

// The verbs, with the meaning of the name beside each.
const (
	VerbSession  Verb = "session"  // open, attach, renew or close a session; no name
	VerbAcquire  Verb = "acquire"  // a lock's name, asked for each item
	VerbDrop     Verb = "drop"     // drop or downgrade a ticket of one's own session; no name
	VerbGet      Verb = "get"      // a lock's name; also for Check
	VerbList     Verb = "list"     // a prefix; also for Watch
	VerbSessions Verb = "sessions" // list sessions; no name
	VerbNow      Verb = "now"      // read the clock; no name
	VerbForce    Verb = "force"    // force a release: a lock's name; end a session: no name
	VerbMembers  Verb = "members"  // list the nodes; no name
	VerbChange   Verb = "change"   // add or remove a node, transfer leadership: a node's id
	VerbBackup   Verb = "backup"   // no name
)

// Authorize decides whether the caller may make a request: nil allows it, and the text of another error is
// sent to the caller. It must be quick. A nil Authorize allows everything.
type Authorize func(ctx context.Context, verb Verb, name string) error

// check asks, and converts a refusal.
func (a Authorize) check(ctx context.Context, verb Verb, name string) error {
	if a == nil {
		return nil
	}
	switch err := a(ctx, verb, name); {
	case err == nil:
		return nil
	case name == "":
		return wire.Errorf(zamokpb.Code_CODE_DENIED, "not done: %s is not allowed: %v", verb, err)
	default:
		return wire.Errorf(zamokpb.Code_CODE_DENIED, "not done: %s of %q is not allowed: %v", verb, name, err)
	}
}

// Identity names the caller that opens a session, as far as the connection shows: the name in a verified
// certificate, or else the host. A name that the state machine would refuse becomes "".
func Identity(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return ""
	}
	name, _, err := net.SplitHostPort(p.Addr.String())
	if err != nil {
		name = p.Addr.String()
	}
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
		if chains := info.State.VerifiedChains; len(chains) > 0 && len(chains[0]) > 0 && chains[0][0].Subject.CommonName != "" {
			name = chains[0][0].Subject.CommonName
		}
	}
	if wrongText(name, 0, fsm.IdentityBytesMax) != "" {
		return ""
	}
	return name
}
