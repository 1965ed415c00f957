// Package api is the wire: what clients say to a node, and what they are told. The reference of the
// protocol is zamokpb/zamok.proto; this page is about how it is served.
//
//	a frame → commands.go → validation.go → raftnode → … → events → hub.go → sendqueue.go → write.go → a frame
//
// # Who does what
//
//	Node      (node.go) composes a node: the replicated machine, the hub, the ring, the server
//	Server    (server.go) answers calls. Sessions' streams are in stream.go, commands.go and write.go, all
//	          other calls in unary.go, read.go, watch.go, admin.go
//	door      (validation.go) checks every field before anything is proposed, and says which is wrong
//	errors    (errors.go) is the one table from our errors to the wire's and gRPC's
//	authorize (authorize.go) is asked in every handler
//	hub       (hub.go) carries the machine's events to streams and to held-open calls
//	place     (position.go) tells waiters their places, and holders how many wait
//	ring      (history.go) remembers the latest events for those who watch
//	timeline  (appliedtimes.go) remembers when an index was applied, for people who ask for ages
//	http      (http.go) is the port of /metrics (metrics.go), /healthz and /readyz
//	relay     (relay.go) passes calls on to the leader when asked to
//	meant     (cluster.go) refuses, before all of these, what is meant for another cluster
//	observer  (observe.go) is told what happens to locks and sessions, to count it; by the leader only
//	health    (server.go) is grpc.health.v1: serving while the node is ready, as /readyz says it too
//
// Goroutines: a stream has its handler, a reader and a writer; the hub has one, for what is told a little
// later; a waiting ticket has none. All end before Close returns.
//
// # Promises
//
// Of a stream:
//
//	A1  It is the session's from its own Attached event on, and ends, superseded, with the next one. Its
//	    first message is a SessionState with every ticket as it stood at that event; after it comes every
//	    change of every ticket, in the machine's order. State and changes are one sequence, the log's:
//	    nothing is read or merged beside it.
//	A2  Nothing of that is lost or reordered: when it would be, the stream ends. A reader that falls
//	    behind more than queueMessagesMax messages or queueBytesMax bytes, or needs more than other streams
//	    leave of queuesBytesMax, is cut, never waited for.
//	A3  KeepAliveAck and SessionState prove life with the `sent` of the very frame that was applied, never with
//	    another's, and only after it was applied. Changes are numbered, and KeepAliveAck says how many were
//	    queued before it: so a client notices if A2 were ever broken.
//	A4  Every command is answered: by its own Change, or by an Answer. Because raft answers after the
//	    machine told its events, a Change comes before the Answer of the command that made it, and
//	    of two states of a ticket the further one is true.
//	A5  A server never proposes anything twice, nor anything that a client did not ask for; but it ends
//	    a session that asked for that when its stream breaks (disconnect.go), and drops the ticket of
//	    a held-open call that broke, unless its client has asked for the same ticket again.
//	A6  Only a break by the client's doing counts for that (connection.go), of a stream that was attached here
//	    directly: never one that this node made, nor one that another node relayed. A machine that
//	    vanished is the business of its ttl.
//
// Of all calls:
//
//	A7  Bad input is refused with the field named, and nothing is proposed.
//	A8  An error says what took effect: done, not done or unknown. A stream that ends leaves what was
//	    on its way unknown; to send it again with the same ticket is safe.
//	A9  Reads are linearizable: they are answered behind a fence.
//	A10 A secret is hashed at the door. It is in no log line, no entry and no snapshot.
//	A11 A watch leaves nothing out: all events of one index are in one frame, a session's end after those
//	    of its tickets. A session has no name, so only a watch of everything (prefix "") has its end.
//	    Where the ring has forgotten what comes next, or a snapshot took its place, or an index has more
//	    events than a frame takes (watchFrameBytesMax), the watch ends with GONE. Where a node only begins
//	    anew, and what comes next comes again, it ends with STOPPING.
//	A12 What a node passes on is passed on once, with the leader's own word as its answer. The leader
//	    knows that it was relayed, so A6 holds for it.
//	A13 A request that names another cluster has no effect here. Every answer names the node's cluster, as soon
//	    as the node knows it.
//
// # What costs what
//
// A waiting ticket costs memory in the machine only, unless it asked for its place: then a record in
// the hub. While no queue moves, nothing is computed or sent for anybody who waits. A stream at rest
// costs three goroutines and a few hundred bytes beside them.
//
// While the machine is read nothing is applied. So what is read for one frame, for one round of positions or for one
// call is bounded, whatever others did, and calls that read much take turns (read.go). What clients can
// have a node keep is bounded in bytes: docs/design.md lists each bound with its test.
package api
