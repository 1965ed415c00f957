// Package zamokpb is the wire of zamok as Go types, generated from zamok.proto, whose comments are
// the API reference. `make generate` makes it anew.
package zamokpb
