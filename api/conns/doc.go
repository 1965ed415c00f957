// Package conns bounds what the connections of clients keep of a node: how many there are, how long a call may be without
// its request, and how many bytes wait, of requests that are not complete and of answers that are not sent.
//
//	budget := conns.NewBudget(64<<20, refused)
//	server := grpc.NewServer(append(budget.Options(credentials), …)...)
//	server.Serve(budget.Listen(listener, 16384, limit)) // and for HTTP: budget.Handler(handler)
//
// # Model
//
// gRPC bounds what it keeps of a stream, by its window and the largest message, but not what all streams of all connections
// add up to, and it has no time limit for either direction. Here each byte that is under way counts in one Budget:
//
//   - of a request, from when its DATA frame is read until a handler has the message, and each frame costs frameBytes more,
//     because gRPC keeps the pieces that it received; a call without a request counts 16 KiB;
//   - of an answer, from when the handler sends it until its DATA frame is written, also after the handler has returned: to
//     gRPC such a call is still open, and a server can't take back what it has queued.
//
// Above the budget the connection is closed that has kept most for longest, by bytes times the seconds for which they have
// not moved: a client that reads its answers and completes its requests keeps nothing for long. So no call is refused
// because of what others left unread. It is a break that the server made: the client doesn't know what took effect, and
// asks again.
//
// A connection without a call holds a slot only until another one needs it: of all slots in use the one is taken that was
// without a call for longest. A connection that has not finished its handshake has no call.
//
// # Files
//
//	conn.go      Conn: a connection, which of its ends broke it, and its calls
//	listener.go  Listener: the slots
//	budget.go    Budget: the sum, and which connection is closed
//	grpc.go      what counts of gRPC: the frames of HTTP/2 in both directions, and messages
//	http.go      what counts of net/http
package conns
