// Package api is a node of a cluster: the replicated state machine, and the servers of its clients
// by gRPC and HTTP. It also serves metrics and health.
//
//	members, err := peer.ParseList("n1=host1:5751,n2=host2:5751,n3=host3:5751")
//	node, err := api.StartNode(ctx, api.NodeConfig{Config: raftnode.Config{
//		ID: "n1", Store: store.Config{Dir: "data/n1"}, Peers: peer.Config{List: members},
//	}})
//	…
//	defer node.Close()
//
// # Model
//
// A request goes one way, and its response comes back on it:
//
//	client → api/rpc or api/web → api/gate → api/service → raftnode → … → events → api/push → …
//
// The two fronts translate. The gate decides whether the request is served, and by which node;
// package relay passes it on to the leader. The service carries it out, and knows neither protocol
// nor permission. The imports of the packages allow no other way (cmd/policy).
//
// # Parts
//
//	node.go     Node and its configuration: it composes the replicated state machine and the
//	            server
//	server.go   server: it composes fronts, gate, service and relay, and stops them
//	http.go     the HTTP port: /v1/, /metrics, /healthz, /readyz and profiles
//	auditing.go where the audit log goes without a file, and what happens when it can't be written
//	grants.go   grants and ends of holds in the audit log
//
// The subjects below it are packages of their own, which never import api:
//
//	rpc       the front for gRPC, with health and reflection
//	web       the front for HTTP with JSON
//	gate      what a request passes before and after it is served: the caller, limits, validation,
//	          permission, ownership, room, redaction and the audit log; below it identity, rules
//	          and limits
//	service   the requests as plain methods
//	relay     calls that another node answers
//	conns     connections of clients: how many, and how many bytes of incomplete requests and
//	          unsent answers
//	push      delivers events to streams and waiting calls, and queue positions to waiters;
//	          releases sessions whose stream broke
//	history   the remembered events for watches; when an index was applied, for ages that are
//	          shown to people
//	audit     the lines of the audit log
//	aggregate counts of events that are too many for a log line each
//	metrics   what is counted, in Prometheus's format
//	wire      errors with their codes and outcomes; messages that describe the state
//
// Goroutines: a stream has its handler, a reader and a writer; a call of HTTP has that of its
// connection and one of its own, and those of a stream if it is one; the hub of push has one for
// positions; a waiting ticket has none. All end before Close returns.
//
// # Promises
//
// Of a stream:
//
//	A1  A stream owns its session from its own Attached event until the next one, which ends it as
//	    superseded. Its first message is a SessionState with every ticket as of that event; after
//	    it comes every change of every ticket, in the order of the log. State and changes are one
//	    sequence, that of the log: nothing is read or merged beside it.
//	A2  No message is lost or reordered: the stream ends instead. A reader that falls behind more
//	    than queueMessagesMax messages or queueBytesMax bytes, or needs more than other streams
//	    leave of queuesBytesMax, is disconnected and never waited for.
//	A3  KeepAliveAck and SessionState carry the `sent` of the very frame that was applied, never
//	    another's, and only after it was applied. Changes are numbered, and KeepAliveAck has the
//	    number queued before it, so a client detects a violation of A2. A KeepAlive that comes
//	    behind something unanswered is acknowledged at once, without `sent`: a client that waits
//	    for a slow commit learns that its stream stands.
//	A4  Every command is answered, by its own Change or by an Answer. Because the node answers
//	    after the state machine has emitted its events, a Change precedes the Answer of the
//	    command that made it, and of two states of a ticket the later one is true.
//	A5  A server never proposes a command twice, and none that a client did not request, with
//	    three exceptions: it ends a session with release on disconnect when its stream breaks; it
//	    drops the ticket of a waiting call that broke, unless another call for the same ticket
//	    waits or was answered; and it renews the session that a call opened for itself while that
//	    waits, and closes it when the call breaks, in place of the drop, or its ticket ends. The
//	    first two are proposed again if they were certainly not done.
//	A6  For A5 a break counts only if the client caused it (conns.ClosedByPeer), on a stream that
//	    was attached to this node directly: never a break that this node made, nor one of a
//	    relayed stream, nor of a call whose relay was removed. The session of a computer that
//	    vanished lives until its ttl.
//
// Of all calls:
//
//	A7  Invalid input is refused with the name of the field, and nothing is proposed. (A ttl above
//	    the cluster's longest is refused by the state machine: a repeated opening of a living
//	    session is answered whatever the longest is.)
//	A8  An error has what took effect: done, not done or unknown. A stream that ends leaves its
//	    pending commands unknown; to send them again with the same ticket is safe. Of an
//	    acquisition, or of an opening of a session, "not done" is said by the state machine, or if
//	    the request was never sent before, as its sender says (wire.OfRetransmission).
//	A9  Reads are linearizable: a read barrier precedes each answer.
//	A10 A secret is hashed on arrival. It is in no log line, no entry and no snapshot.
//	A11 A watch omits nothing: all events of one index are in one frame, a session's end after
//	    those of its tickets. A session has no name, so only a watch with the prefix "" has its
//	    end. If the history no longer has the next events, or a snapshot replaced them, or an
//	    index has more events than a frame takes (history/history.go), the watch ends with
//	    COMPACTED. A node that opens Raft again forgets nothing. A watch from an index that the
//	    cluster has not reached is refused. A quiet watch is sent its index at a fixed beat.
//	A12 A call is relayed once, over the peer port, and its answer is the leader's. The leader
//	    knows that a call was relayed, so A6 holds for it. It takes the caller's identity from the
//	    relaying node, which the handshake of peers has authenticated.
//	A13 A request that names another cluster has no effect. Every response of gRPC names the
//	    node's cluster as soon as the node knows it.
//
// # Costs
//
// A waiting ticket costs memory in the state machine only, plus a record in push if its client
// wants its position. Waiters cost computation and messages only when a queue moves. An idle stream
// costs three goroutines and a few hundred bytes.
//
// Nothing is applied while the state machine is read. So the reads for one frame, one round of
// positions or one call are bounded, whatever the state, and calls that read much do so one at a
// time (Service.readInParts). What clients can make a node keep is bounded in bytes: docs/design.md
// lists each bound with its test.
package api
