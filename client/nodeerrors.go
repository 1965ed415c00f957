package client

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"zamok/api/zamokpb"
)

// unavailable is an error with the latest error of every node.
func (n *nodes) unavailable(outcome Outcome, cause error) *Error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return &Error{Kind: ErrUnavailable, Outcome: outcome, cause: cause,
		Nodes: append(each(n.all, func(one *node) NodeError {
			why := plainError(cmp.Or(one.last, errNoAnswer))
			if relayed := one.relay.last; relayed != nil {
				why = fmt.Errorf("%w; as a relay: %w", why, plainError(relayed))
			}
			return NodeError{Address: one.address, Err: why}
		}), n.unresolved()...)}
}

// plainError is an error with the node's message, or the connection's, without the words that gRPC
// adds. It wraps nothing but ErrWrongCluster: what one call met must not be found in the error of a
// later one.
func plainError(err error) error {
	s, ok := status.FromError(err)
	switch info := infoOf(err); {
	case info.GetMessage() != "":
		return errors.New(info.GetMessage())
	case ok && s.Code() == codes.DeadlineExceeded:
		return errNoAnswer
	case ok:
		return errors.New(explainConnection(s.Message()))
	case errors.Is(err, ErrWrongCluster):
		return err
	}
	return errors.New(err.Error())
}

// refusedConnection reports whether the connection was missing, so that nothing was sent, for
// another reason than silence.
func refusedConnection(err error) bool {
	message := status.Convert(err).Message()
	return err != nil && infoOf(err) == nil && isConnectionError(message) &&
		explainConnection(message) != silent
}

var errNoEndpoint = errors.New(
	"no endpoint leads to a node; start the nodes, or correct the endpoints or TLS")

const (
	connectionError = "connection error"
	silent          = "nothing answers there"
	hangsUp         = "it hangs up before it says anything: it wants TLS (--cacert, or " +
		"Config.TLS) or a certificate (--cert), has reached a limit of connections, waits for " +
		"other nodes to begin its cluster with, or is another program"
)

// connections explains the errors of connections. The texts come from gRPC and the system; those
// that are not listed are shown as they are.
var connections = []struct{ text, meaning string }{
	{"connection refused", "nobody listens there (connection refused)"},
	{"looked like an HTTP/1.1 header",
		"this is a port for HTTP/1.1, as a node's HTTP port is: name the node's port for clients"},
	{"first record does not look like a TLS handshake",
		"what listens there does not talk TLS, and this client does: leave out --cacert " +
			"(Config.TLS), or name a port with TLS"},
	{"http2: frame too large",
		"what listens there wants TLS (--cacert, or Config.TLS), or is no port for clients but " +
			"one for other nodes"},
	{"server preface: EOF", hangsUp},
	{"connection reset by peer", hangsUp},
	{"broken pipe", hangsUp},
	{"tls: no application protocol",
		"it talks TLS, and not gRPC: name the node's port for clients"},
	{"remote error: tls: ",
		"the node wants a certificate of this client that it can trust: give one (--cert and " +
			"--key, or Config.TLS)"},
	{"certificate signed by unknown authority",
		"the node's certificate is of no authority that this client trusts: name its authority " +
			"(--cacert, or Config.TLS)"},
	{"no such host", "there is no host of this name"},
	{"i/o timeout", silent},
	{"context deadline exceeded", silent},
}

// isConnectionError distinguishes gRPC's errors of a failed connection from those of a call. gRPC
// adds nothing to the error of the very first write on a connection; later failures of writes
// appear as failures of reads.
func isConnectionError(text string) bool {
	return strings.HasPrefix(text, connectionError) || strings.HasPrefix(text, "write tcp ")
}

func explainConnection(text string) string {
	if !isConnectionError(text) {
		return text
	}
	for _, c := range connections {
		if strings.Contains(text, c.text) {
			return c.meaning
		}
	}
	return text
}

// permanentError is an error that no further attempt may follow, whatever it wraps.
type permanentError struct{ error }

func (f permanentError) Unwrap() error { return f.error }

// permanent returns the error of a call if it is permanent; nil if another attempt is worth while.
func permanent(err error) error {
	var final permanentError
	if errors.As(err, &final) {
		return final.error
	}
	info := infoOf(err)
	if code := status.Code(err); info == nil &&
		(code == codes.Unauthenticated || code == codes.PermissionDenied) {
		return &Error{Kind: ErrDenied, Message: plainError(err).Error()} // from a proxy
	}
	if info.GetCode() == zamokpb.Code_CODE_COMPACTED { // another node may remember it: see Watch
		return nil
	}
	return errorOf(info)
}
