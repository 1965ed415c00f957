// Package conns bounds the connections of clients: how many there are, how long a call may be
// without its request, and how many bytes of incomplete requests and unsent answers they occupy.
//
//	budget := conns.NewBudget(64<<20, refused)
//	server := grpc.NewServer(append(budget.Options(credentials), …)...)
//	server.Serve(budget.Listen(listener, 16384, limits)) // and for HTTP: budget.Handler(handler)
//	…
//	end, limit := conns.Of(ctx).Admitted(true, mayOperate) // once a call is let through
//
// # Model
//
// gRPC bounds the memory of a stream, by its window and the largest message, but not the sum over
// all streams of all connections, and it has no time limit in either direction. This package counts
// all bytes in flight in one Budget:
//
//   - Bytes of a request count from when their DATA frame is read until a handler has the message.
//     Each frame costs frameBytes more, because gRPC keeps the pieces that it received. A call
//     without a request counts 16 KiB.
//   - Bytes of an answer count from when the handler sends it until their DATA frame is written,
//     even after the handler has returned: gRPC still keeps the answer, and a server can't take it
//     back.
//
// Beyond the budget, the connection with the highest product of bytes and seconds without progress
// is closed. A client that reads its answers and completes its requests occupies little for long,
// so its calls are served while others do not read. The server caused the break: the client does
// not know what took effect, and sends the request again.
//
// # Which connection gives way
//
// A connection is new until a call of it was admitted: authenticated, and let through by limits and
// rules. What its client sends before, HEADERS or half a request, gives it no right to stay, nor
// does the handshake with a certificate. Health checks are never admitted, so they come on new
// connections. A Listener has most connections:
//
//	class     at most                                 at the limit this one gives way
//	new       what the others leave, an eighth        to a new one: the oldest of the address that
//	          at least                                has most of them
//	admitted  the rest; of one address (both ports    to one that becomes admitted: one without an
//	          together) connections-per-address       admitted call in flight, those without an
//	                                                  identity first, then the longest idle
//	reserved  1/32, for who may operate and found     as above, among the reserved
//	          no room among the admitted
//
// Beside that, an admitted connection without an identity (all of its calls were anonymous) gives
// way to one with an identity, even during a call, and never the reverse. One with an identity
// never gives way during a call. If none gives way, Admitted returns the limit, and the connection
// stays new.
//
// # Invariants
//
//	K1  A Budget counts the bytes in flight of the calls of all open connections. A closed
//	    connection counts nothing.
//	K2  A connection counts in its class of its Listener from Accept until Close.
//
// # Files
//
//	conn.go      Conn: a connection, its calls, and which end broke it
//	listener.go  Listener: how many connections there are, and which gives way
//	budget.go    Budget: the sum, and which connection is closed
//	grpc.go      counting for gRPC: the frames of HTTP/2 in both directions, and messages
//	http.go      counting for net/http
package conns
