package main

import (
	"bufio"
	"fmt"
	"net"
	"sync"

	"zamok/jepsen/check"
)

// fencedResource is what the locks guard: it takes no write with a token below the greatest exclusive one that
// it saw. It lives in the process of the run, and is never paused.
type fencedResource struct {
	listener net.Listener
	record   *recorder
	work     sync.WaitGroup

	mu           sync.Mutex // guards what follows
	highestToken map[string]uint64
	conns        map[net.Conn]struct{}
}

func newResource(address string, r *recorder) (*fencedResource, error) {
	in, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	s := &fencedResource{listener: in, record: r, highestToken: map[string]uint64{}, conns: map[net.Conn]struct{}{}}
	s.work.Go(func() {
		for {
			conn, err := in.Accept()
			if err != nil {
				return // closed
			}
			s.mu.Lock()
			s.conns[conn] = struct{}{}
			s.mu.Unlock()
			s.work.Go(func() { s.serveConn(conn) })
		}
	})
	return s, nil
}

// serveConn reads writes, a line each, and says of each whether it was accepted.
func (s *fencedResource) serveConn(conn net.Conn) {
	defer conn.Close()
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		var w check.Write
		if _, err := fmt.Sscanf(lines.Text(), "%q %q %d %t", &w.Resource, &w.Client, &w.Token, &w.Shared); err != nil {
			return
		}
		if _, err := fmt.Fprintln(conn, s.decide(w)); err != nil {
			return
		}
	}
}

func (s *fencedResource) decide(w check.Write) (accepted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Accepted, w.At = w.Token >= s.highestToken[w.Resource], monotonicNow()
	if w.Accepted && !w.Shared {
		s.highestToken[w.Resource] = w.Token
	}
	s.record.put(check.Record{Write: &w})
	return w.Accepted
}

func (s *fencedResource) close() {
	s.listener.Close()
	s.mu.Lock()
	for conn := range s.conns {
		conn.Close()
	}
	s.mu.Unlock()
	s.work.Wait()
}

// resourceConn is one goroutine's connection to the resource.
type resourceConn struct {
	net.Conn
	answers *bufio.Reader
}

func dialResource(address string) (*resourceConn, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	return &resourceConn{conn, bufio.NewReader(conn)}, nil
}

func (p *resourceConn) write(name, client string, token uint64, shared bool) error {
	if _, err := fmt.Fprintf(p, "%q %q %d %t\n", name, client, token, shared); err != nil {
		return err
	}
	_, err := p.answers.ReadString('\n')
	return err
}
