package gate

import (
	"crypto/x509"

	"zamok/api/conns"
	"zamok/raftnode/peer"
)

// Arrival is what a front knows of a call beside its messages. The gate makes a Caller of it.
type Arrival struct {
	Conn    *conns.Conn // on which it came; nil: it is not known
	Address string      // of the client
	// Tokens are the values of the header Authorization, of which there should be one at most.
	Tokens []string
	// Certificate is the one that the client has proved to own; nil: none.
	Certificate *x509.Certificate

	// Via is the node that relays the call, as the handshake of peers has authenticated it. Nil:
	// the call came here. Caller is its caller, as that node has authenticated it (Caller.Values).
	Via    *peer.Server
	Caller []string

	// First: the sender says that this is the first transmission of the request, or that every
	// earlier one was refused as not done.
	First bool
	// Relay: a node that does not lead passes the call on to the leader.
	Relay bool
	// Clusters are those that the request names, by their ids. It has no effect in another one.
	Clusters []string
}
