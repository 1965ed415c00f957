package raftnode

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// One way to call a process from another, the same for a node and for the floor: frames on a
// connection, of which as many as are ready travel with one system call, both ways. A call is
// {number 4, length 2, command}, an answer {number 4, 1 if it was done}.
//
// serveCalls answers calls, and returns where.
func serveCalls(t *testing.T, do func(command []byte, answer func(ok bool))) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go serveConn(conn, do)
		}
	}()
	return l.Addr().String()
}

func serveConn(conn net.Conn, do func([]byte, func(bool))) {
	out := newOutbox(conn)
	run := bufio.NewReaderSize(conn, 64<<10)
	var head [6]byte
	for {
		if _, err := io.ReadFull(run, head[:]); err != nil {
			out.close()
			return
		}
		command := make([]byte, binary.BigEndian.Uint16(head[4:]))
		if _, err := io.ReadFull(run, command); err != nil {
			out.close()
			return
		}
		number := [5]byte(head[:5])
		do(command, func(ok bool) {
			number[4] = 0
			if ok {
				number[4] = 1
			}
			out.put(number[:])
		})
	}
}

// outbox gathers frames and writes what there is at once.
type outbox struct {
	conn net.Conn
	mu   sync.Mutex
	some sync.Cond
	buf  []byte
	done bool
}

func newOutbox(conn net.Conn) *outbox {
	o := &outbox{conn: conn}
	o.some.L = &o.mu
	go o.write()
	return o
}

func (o *outbox) put(parts ...[]byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range parts {
		o.buf = append(o.buf, p...)
	}
	o.some.Signal()
}

func (o *outbox) write() {
	var spare []byte
	for {
		o.mu.Lock()
		for len(o.buf) == 0 && !o.done {
			o.some.Wait()
		}
		if o.done {
			o.mu.Unlock()
			return
		}
		ready := o.buf
		o.buf = spare[:0]
		o.mu.Unlock()
		if _, err := o.conn.Write(ready); err != nil {
			o.close()
		}
		spare = ready
	}
}

func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.done = true
	_ = o.conn.Close()
	o.some.Signal()
}

var errNotDone = errors.New("the call was not done")

// line calls a process; each caller has its own number.
type line struct {
	out     *outbox
	answers []chan bool
}

func dialCalls(t testing.TB, address string, callers int) *line {
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	l := &line{out: newOutbox(conn)}
	for range callers {
		l.answers = append(l.answers, make(chan bool, 1))
	}
	go func() {
		run := bufio.NewReaderSize(conn, 64<<10)
		var frame [5]byte
		for {
			if _, err := io.ReadFull(run, frame[:]); err != nil {
				return
			}
			l.answers[binary.BigEndian.Uint32(frame[:])] <- frame[4] == 1
		}
	}()
	t.Cleanup(l.out.close)
	return l
}

func (l *line) call(caller int, command []byte) error {
	var head [6]byte
	binary.BigEndian.PutUint32(head[:], uint32(caller))
	binary.BigEndian.PutUint16(head[4:], uint16(len(command)))
	l.out.put(head[:], command)
	if !<-l.answers[caller] {
		return errNotDone
	}
	return nil
}
