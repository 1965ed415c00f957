// Package access decides which requests a node serves. It authenticates the caller of each call, validates every field of a
// request, and checks the access rules. All protocols of a node pass their requests through Guard.Admit before anything is
// proposed or read.
//
//	caller, err := identifier.Caller(ctx, time.Now()) // by a token or a certificate
//	ctx = access.NewContext(ctx, caller)
//	…
//	if err := guard.Admit(ctx, request); err != nil {
//		return err // nothing was done
//	}
//
// What a caller may not see is left out of listings and watches (Guard.Locks, Sessions, Watches) and removed from responses
// and errors (Guard.Redact).
//
// # Files
//
//	access.go   Guard: the table of all requests with their checks and permissions
//	caller.go   Caller, and how a call is authenticated
//	listing.go  pages and filters of what a caller may see
//	redact.go   what is removed from responses and errors
//
// Below it, package identity verifies tokens and certificates, package rules reads and evaluates the access rules, and
// package limits counts what callers use of a node.
package access
