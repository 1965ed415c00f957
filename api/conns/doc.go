// Package conns bounds the connections of clients: how many there are, how long a call may be without its request, and how
// many bytes of incomplete requests and unsent answers they occupy.
//
//	budget := conns.NewBudget(64<<20, refused)
//	server := grpc.NewServer(append(budget.Options(credentials), …)...)
//	server.Serve(budget.Listen(listener, 16384, limit)) // and for HTTP: budget.Handler(handler)
//
// # Model
//
// gRPC bounds the memory of a stream, by its window and the largest message, but not the sum over all streams of all
// connections, and it has no time limit in either direction. This package counts all bytes under way in one Budget:
//
//   - Bytes of a request count from when their DATA frame is read until a handler has the message. Each frame costs frameBytes
//     more, because gRPC keeps the pieces that it received. A call without a request counts 16 KiB.
//   - Bytes of an answer count from when the handler sends it until their DATA frame is written, even after the handler has
//     returned: gRPC still keeps the answer, and a server can't take it back.
//
// Beyond the budget, the connection with the highest product of bytes and seconds without progress is closed. A client that
// reads its answers and completes its requests occupies nothing for long, so no call is refused because others do not read. The
// server caused the break: the client does not know what took effect, and asks again.
//
// A connection without a call has its slot only until a new connection needs one. Then the one that has been without a call
// for longest is closed. A connection that has not finished its handshake has no call.
//
// # Invariants
//
//	K1  A Budget counts the bytes under way of the calls of all open connections. A closed connection counts nothing.
//	K2  A connection occupies a slot of its Listener from Accept until Close.
//
// # Files
//
//	conn.go      Conn: a connection, its calls, and which end broke it
//	listener.go  Listener: the slots
//	budget.go    Budget: the sum, and which connection is closed
//	grpc.go      counting for gRPC: the frames of HTTP/2 in both directions, and messages
//	http.go      counting for net/http
package conns
