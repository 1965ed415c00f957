package main

import (
	"net"
	"net/rpc"
	"sync"

	"zamok/jepsen/check"
)

// fencedResource is what the locks guard: it accepts no write with a token below the greatest exclusive one that
// it saw. It lives in the process of the run, and is never paused.
type fencedResource struct {
	listener net.Listener
	record   *recorder

	mu           sync.Mutex // guards what follows
	highestToken map[string]uint64
}

func newResource(address string, r *recorder) (*fencedResource, error) {
	in, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	s := &fencedResource{listener: in, record: r, highestToken: map[string]uint64{}}
	server := rpc.NewServer()
	if err := server.RegisterName("Resource", s); err != nil {
		return nil, err
	}
	go func() { // until the listener is closed
		for {
			conn, err := in.Accept()
			if err != nil {
				return
			}
			go server.ServeConn(conn) // until its program ends
		}
	}()
	return s, nil
}

// Write decides whether a write is accepted, and records it. Programs call it by net/rpc.
func (r *fencedResource) Write(w check.Write, accepted *bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	w.Accepted, w.At = w.Token >= r.highestToken[w.Resource], monotonicNow()
	if w.Accepted && !w.Shared {
		r.highestToken[w.Resource] = w.Token
	}
	r.record.put(check.Record{Write: &w})
	*accepted = w.Accepted
	return nil
}
