package main

import (
	"bufio"
	"fmt"
	"net"
	"sync"

	"zamok/jepsen/check"
)

// resource is what the locks guard: it takes no write with a token below the greatest exclusive one that
// it saw. It lives in the process of the run, and is never paused.
type resource struct {
	in     net.Listener
	record *record
	work   sync.WaitGroup

	mu    sync.Mutex // guards what follows
	top   map[string]uint64
	conns map[net.Conn]struct{}
}

func newResource(address string, r *record) (*resource, error) {
	in, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	s := &resource{in: in, record: r, top: map[string]uint64{}, conns: map[net.Conn]struct{}{}}
	s.work.Go(func() {
		for {
			conn, err := in.Accept()
			if err != nil {
				return // closed
			}
			s.mu.Lock()
			s.conns[conn] = struct{}{}
			s.mu.Unlock()
			s.work.Go(func() { s.answer(conn) })
		}
	})
	return s, nil
}

// answer reads writes, a line each, and says of each whether it was accepted.
func (s *resource) answer(conn net.Conn) {
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

func (s *resource) decide(w check.Write) (accepted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Accepted, w.At = w.Token >= s.top[w.Resource], now()
	if w.Accepted && !w.Shared {
		s.top[w.Resource] = w.Token
	}
	s.record.put(check.Record{Write: &w})
	return w.Accepted
}

func (s *resource) close() {
	s.in.Close()
	s.mu.Lock()
	for conn := range s.conns {
		conn.Close()
	}
	s.mu.Unlock()
	s.work.Wait()
}

// pen is one goroutine's connection to the resource.
type pen struct {
	net.Conn
	answers *bufio.Reader
}

func newPen(address string) (*pen, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	return &pen{conn, bufio.NewReader(conn)}, nil
}

func (p *pen) write(name, client string, token uint64, shared bool) error {
	if _, err := fmt.Fprintf(p, "%q %q %d %t\n", name, client, token, shared); err != nil {
		return err
	}
	_, err := p.answers.ReadString('\n')
	return err
}
