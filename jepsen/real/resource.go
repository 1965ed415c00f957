package main

import (
	"net"
	"net/rpc"

	"zamok/jepsen/check"
	"zamok/jepsen/workload"
)

// fencedResource is what the locks guard. It lives in the process of the run, and is never paused.
type fencedResource struct {
	listener net.Listener
	*workload.Resource
}

func newResource(address string, r *recorder) (*fencedResource, error) {
	in, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	s := &fencedResource{listener: in, Resource: workload.NewResource(&r.Recorder)}
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
	*accepted = r.Resource.Write(w)
	return nil
}
