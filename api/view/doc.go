// Package view has the JSON documents that show a cluster: a lock, a ticket, a session, a member,
// an event. HTTP answers with them, and the command prints them with -o json.
//
//	lock := view.NewLock(response) // of a zamokpb.GetResponse
//	text, err := json.Marshal(lock)
//
// Numbers of 64 bits are strings, since many languages would round them; durations are texts such
// as "1m30s". A moment of cluster time is shown as how long ago it was, or how far ahead it is.
// What is not known, or does not apply, is absent. The tag doc describes a field in
// /v1/openapi.json.
package view
