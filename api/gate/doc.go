// Package gate decides which requests a node serves, and what callers learn of the results. Each
// request of zamok's services passes through it, by every front.
//
//	g := gate.New(gate.Config{ID: "n1", Identity: identifier, Rules: rules, Service: service, …})
//	g.Start(node) // before the first request
//
//	// A front makes an Arrival of what a call shows of its caller.
//	response, err := g.Do(ctx, arrival, request)
//	err = g.Stream(ctx, arrival, method, messages)
//
// # Model
//
// The table in requests.go has a row for each request, with all that differs between requests
// here, and what carries it out. A request passes these checks in order:
//
//	Identify   authenticates the caller: its token, its certificate, or the node that relays it
//	route      refuses a call for another cluster, and finds out which node answers
//	limit      what the node and the caller have open at a time, and the rate of requests
//	validate   the fields
//	authorize  the access rules
//	own        the session that the request names: its secret, and the identity that opened it
//	occupy     a place on the connection
//	checkRoom  disk space of the cluster, and quotas
//
// limit never refuses a request that keeps or ends something (Request.essential): a session that is
// not renewed loses its locks, and what ends frees resources. A retransmission of what the state
// machine has is refused only if it would wait beside the earlier one.
//
// A node that relays a request to the leader identifies, limits and occupies. The leader trusts the
// identity, and does the rest for the same caller. Limits count a caller under its Principal.
//
// On the way back, record writes a line of the audit log for an operator's act or a denial, redact
// removes what the caller may not see, and outcome says what took effect. The caller of a call that
// lasts is authenticated again every AuthenticateEvery.
//
// # Files
//
//	requests.go   the table of requests
//	gate.go       Gate: the order of the checks
//	identify.go   the caller of a call, at its beginning and while it lasts
//	arrival.go    what a front knows of a call
//	caller.go     Caller, and how credentials become one
//	client.go     what the service knows of a caller
//	route.go      the cluster, and the node that answers
//	stream.go     calls with a stream, and the messages of a session's stream
//	limit.go      limits of callers, and places on connections
//	validate.go   the fields of requests
//	authorize.go  permission by the access rules
//	own.go        ownership of a session
//	room.go       disk space and quotas
//	auditlines.go the audit log
//	redact.go     what is removed from responses and errors
//	listing.go    pages and filters of what a caller may see
//	outcome.go    what the error of a retransmission says
package gate
