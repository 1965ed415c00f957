// Package service carries out the requests of the wire on one node, as plain methods: it knows no
// protocol, and the caller only through an interface of the gate. Requests come through package
// gate only.
//
//	s := service.New(service.Config{ID: "n1", Hub: hub, History: history, …})
//	s.Start(node) // before the first request
//
//	ctx = service.NewContext(ctx, caller)
//	response, err := s.Acquire(ctx, request) // waits, if the request says so
//
// # Model
//
// What changes the state is a command of the replicated log: raftnode answers with its result. What
// waits is woken by package push, which is given the events of each applied entry. What reads much
// of the state does it behind a read barrier and in parts, one call at a time.
//
// The messages of the wire are the service's parameters. The gate has validated them, knows that
// their caller may send them, and that it owns the session that they name.
//
// # Files
//
//	service.go   Service, and what it knows of a caller
//	calls.go     calls about sessions and tickets, one request and one response each
//	stream.go    the stream of a session
//	overload.go  streams that send more than the cluster can do
//	reads.go     calls that read
//	operate.go   calls of operators
package service
