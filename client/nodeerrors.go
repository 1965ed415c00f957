package client

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// unavailable is the error that names every node.
func (n *nodes) unavailable(outcome Outcome, cause error) *Error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return &Error{Kind: ErrUnavailable, Outcome: outcome, cause: cause, Nodes: append(each(n.all, func(one *node) NodeError {
		why := plain(cmp.Or(one.last, errNoAnswer))
		if relayed := one.relay.last; relayed != nil {
			why = fmt.Errorf("%w; asked to relay to it: %w", why, plain(relayed))
		}
		return NodeError{Address: one.address, Err: why}
	}), n.unresolved()...)}
}

// plain is an error in the server's own words, or the connection's, without those of gRPC. It wraps nothing but
// ErrWrongCluster: what one call met must not be found in the error of a later one.
func plain(err error) error {
	s, ok := status.FromError(err)
	switch info := infoOf(err); {
	case info.GetMessage() != "":
		return errors.New(info.GetMessage())
	case ok && s.Code() == codes.DeadlineExceeded:
		return errNoAnswer
	case ok:
		return errors.New(ofConnection(s.Message()))
	case errors.Is(err, ErrWrongCluster):
		return err
	}
	return errors.New(err.Error())
}

// refuses reports whether an error means that nothing was sent, because there was no connection, for a reason other than silence.
func refuses(err error) bool {
	means := status.Convert(err).Message()
	return err != nil && infoOf(err) == nil && unconnected(means) && ofConnection(means) != silent
}

var errAllRefuse = errors.New("no endpoint leads to a node; start the nodes, or correct the endpoints or TLS")

const (
	connectionError = "connection error"
	silent          = "nothing answers there"
	isHangUp        = "it hangs up before it says anything: it wants TLS (--cacert, or Config.TLS) or a certificate (--cert), has " +
		"reached a limit of connections, waits for other nodes to begin its cluster with, or is another program"
)

// connections are what gRPC says of a connection that did not come about, and what that means: the texts are
// gRPC's and the system's, and what is not here is shown as it is.
var connections = []struct{ heard, means string }{
	{"connection refused", "nobody listens there (connection refused)"},
	{"looked like an HTTP/1.1 header", "this is a port for HTTP/1.1, as a node's HTTP port is: name the node's port for clients"},
	{"first record does not look like a TLS handshake", "what listens there does not talk TLS, and this client does: " +
		"leave out --cacert (Config.TLS), or name a port with TLS"},
	{"http2: frame too large", "what listens there wants TLS (--cacert, or Config.TLS), or is no port for clients but one for other nodes"},
	{"server preface: EOF", isHangUp},
	{"connection reset by peer", isHangUp},
	{"broken pipe", isHangUp},
	{"tls: no application protocol", "it talks TLS, and not gRPC: name the node's port for clients"},
	{"remote error: tls: ", "the node wants a certificate of this client that it can trust: give one (--cert and --key, or Config.TLS)"},
	{"certificate signed by unknown authority", "the node's certificate is of no authority that this client trusts: name its authority (--cacert, or Config.TLS)"},
	{"no such host", "there is no host of this name"},
	{"i/o timeout", silent},
	{"context deadline exceeded", silent},
}

// unconnected distinguishes gRPC's errors of a failed connection from those of a call. The one error
// that it passes on without a word of its own is that of the very first write; later ones it sees as errors of reading.
func unconnected(text string) bool {
	return strings.HasPrefix(text, connectionError) || strings.HasPrefix(text, "write tcp ")
}

func ofConnection(text string) string {
	if !unconnected(text) {
		return text
	}
	for _, c := range connections {
		if strings.Contains(text, c.heard) {
			return c.means
		}
	}
	return text
}
