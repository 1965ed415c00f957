package conns

import (
	"context"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"zamok/api/gate/limits"
)

// bystander sends requests again and again while others do something, and reads large answers: it
// is always answered. They are smaller than what each of the others has in flight, should all of
// them fill the budget together: the largest is cut.
func bystander(t *testing.T, s *server, others func()) {
	const answer = 4 * window
	c, done := s.dial(t), make(chan struct{})
	require.NoError(t, request(t, c, 1))
	var requesting sync.WaitGroup
	served := 0
	requesting.Go(func() {
		for ; ; served++ {
			select {
			case <-done:
				return
			default:
				if !assert.NoError(t, request(t, c, answer)) {
					return
				}
			}
		}
	})
	others()
	require.NoError(t, request(t, s.dial(t), answer), "a new client")
	close(done)
	requesting.Wait()
	t.Log("answered beside it: ", served)
}

// Connections without an admitted call leave to others what they need: neither those that never
// said anything, nor those that finished their handshake, nor those that have begun calls. A
// connection with an admitted call stays.
func TestConnectionsWithoutACallGiveWay(t *testing.T) {
	const slots = 20
	s := serve(t, math.MaxInt64, slots)
	held := s.raw(t)
	require.NoError(t, held.request("held", 0))
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, held.Conn)
		close(ended)
	}()
	inUse := func() (n int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.conns)
	}
	require.Eventually(t, func() bool { return s.running.Load() == 1 }, patience, time.Millisecond)
	var silent []net.Conn
	for i := range 3 * slots { // the later ones take the place of the earlier ones
		switch i % 3 {
		case 0:
			silent = append(silent, s.raw(t).Conn)
		case 1:
			conn, err := net.Dial("tcp", s.address)
			require.NoError(t, err)
			defer conn.Close()
			silent = append(silent, conn)
		case 2:
			c := s.raw(t)
			_ = c.open("held") // without a request; it may have been closed
			silent = append(silent, c.Conn)
		}
	}
	require.NoError(t, request(t, s.dial(t), 100))
	assert.LessOrEqual(t, inUse(), slots)
	require.NoError(t, silent[0].SetReadDeadline(time.Now().Add(patience)))
	_, err := io.Copy(io.Discard, silent[0])
	assert.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the first was closed, or reset")
	select {
	case <-ended:
		t.Error("the connection with a call was closed")
	default:
	}
	// Where each admitted connection has a call, one more is told the limit.
	for n := 1; n < s.admitted; n++ {
		require.NoError(t, s.raw(t).request("held", 0))
		require.Eventually(t, func() bool { return s.running.Load() == int32(n+1) },
			patience, time.Millisecond)
	}
	require.ErrorContains(t, request(t, s.dial(t), 100), limits.AllConnections)
}

// Messages that are never completed keep at most the budget, whatever the size of their frames.
func TestUnfinishedMessagesAreBounded(t *testing.T) {
	for name, one := range map[string]struct{ conns, streams, bytes, frame int }{
		"large frames": {10, 50, window, 16 << 10},
		"small frames": {2, 50, 4 << 10, 1},
	} {
		t.Run(name, func(t *testing.T) {
			const budget = 4 << 20
			s, before, most := serve(t, budget, 100), heap(), int64(0)
			bystander(t, s, func() {
				for range one.conns {
					c := s.raw(t)
					c.discard()
					for range one.streams {
						if c.open("held") != nil ||
							c.send(message(messageMax, one.bytes), one.frame) != nil {
							break // it was closed
						}
						most = max(most, s.used.Load())
					}
				}
			})
			assert.LessOrEqual(t, s.used.Load(), int64(budget))
			assert.Greater(t, most, int64(budget/4), "that much was in flight")
			grown := grownLess(t, before, 4*budget)
			t.Logf("%d unfinished messages: the heap grew by %d KiB, the budget has %d KiB",
				one.conns*one.streams, grown>>10, s.used.Load()>>10)
		})
	}
}

// Answers that are never read keep at most the budget.
func TestUnreadAnswersAreBounded(t *testing.T) {
	const budget = 8 << 20
	s, before := serve(t, budget, 100), heap()
	bystander(t, s, func() {
		for range 10 {
			c := s.raw(t)
			for range 5 { // their windows take 64 KiB each
				if c.request("big", 1<<20) != nil {
					break // it was closed
				}
			}
		}
		require.Eventually(t, func() bool { return s.used.Load() > budget/4 }, patience,
			time.Millisecond)
	})
	assert.Eventually(t, func() bool { return s.used.Load() <= budget }, patience, time.Millisecond)
	grown := grownLess(t, before, 3*budget)
	t.Logf("50 unread answers of 1 MiB: the heap grew by %d KiB, the budget has %d KiB", grown>>10,
		s.used.Load()>>10)
}

// Nothing counts any more when calls have ended, however they ended, while their connection lives
// on.
func TestWhatEndedDoesNotCount(t *testing.T) {
	s := serve(t, math.MaxInt64, 10)
	c := s.dial(t)
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+i%8)*5*time.Millisecond)
			defer cancel()
			switch i % 4 {
			case 0:
				assert.NoError(t, request(t, c, i<<14))
			case 1: // cancelled while it sends or receives
				_ = c.Invoke(ctx, "/test/big",
					wrapperspb.Bytes(append(bytesOf(i<<16).Value, make([]byte, 100<<10)...)),
					&wrapperspb.BytesValue{})
			case 2:
				_ = c.Invoke(ctx, "/test/held", wrapperspb.Bytes(make([]byte, 150<<10)),
					&wrapperspb.BytesValue{})
			case 3:
				echo, err := c.NewStream(ctx,
					&grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/test/echo")
				for err == nil {
					if err = echo.SendMsg(wrapperspb.Bytes(make([]byte, i<<10))); err == nil &&
						i > 32 {
						err = echo.RecvMsg(&wrapperspb.BytesValue{})
					}
				}
			}
		})
	}
	all.Wait()
	raw := s.raw(t) // whose frames are padded
	raw.discard()
	require.NoError(t, raw.open("echo"))
	for range 10 {
		require.NoError(t, raw.WriteDataPadded(raw.last, false, encoded(1), make([]byte, 200)))
	}
	require.NoError(t, request(t, c, 1))
	require.Eventually(t, func() bool { return s.used.Load() == 0 && s.calls() == 1 }, patience,
		time.Millisecond,
		"what is left is the padded stream, without bytes")
}

// A call without its request ends, and so does one whose request is never complete.
func TestACallWithoutARequestEnds(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for ", receiveWait, ": left out with -short")
	}
	t.Parallel()
	s := serve(t, math.MaxInt64, 10)
	c := s.raw(t)
	for _, method := range []string{"held", "echo"} {
		require.NoError(t, c.open(method))
		require.NoError(t, c.open(method))
		require.NoError(t, c.send(message(100, 50), 50))
	}
	require.NoError(t, c.request("held", 1))
	ends := 0
	require.NoError(t, c.SetReadDeadline(time.Now().Add(receiveWait+patience)))
	for ends < 4 {
		f, err := c.ReadFrame()
		require.NoError(t, err)
		if h, is := f.(*http2.HeadersFrame); is && h.StreamEnded() {
			require.NotEqual(t, c.last, h.StreamID, "that one has its request")
			ends++
		}
	}
	assert.Zero(t, s.used.Load())
}

// Over HTTP as well: bodies that do not end, and answers that are not read.
func TestRequestsOfHTTPAreBounded(t *testing.T) {
	const budget = 1 << 20
	b := NewBudget(budget, func(string, net.Addr) {})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	of := &http.Server{
		ConnContext: WithConn,
		Handler: b.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.ReadAll(r.Body); err == nil && r.URL.Path == "/big" {
				_, _ = w.Write(make([]byte, 4<<20))
			}
		})),
	}
	go func() { _ = of.Serve(b.Listen(l, 100, nil)) }()
	defer of.Close()
	for _, request := range []string{
		"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" +
			strings.Repeat("x", 100<<10),
		"GET /big HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		for range 30 {
			conn, err := net.Dial("tcp", l.Addr().String())
			require.NoError(t, err)
			defer conn.Close()
			_, _ = io.WriteString(conn, request) // it may have been closed
		}
		require.Eventually(t, func() bool {
			answer, err := http.Post("http://"+l.Addr().String()+"/", "", strings.NewReader("all"))
			if err == nil {
				_ = answer.Body.Close()
			}
			return err == nil && b.used.Load() <= budget
		}, patience, time.Millisecond)
	}
	require.NoError(t, of.Close())
	require.Eventually(t, func() bool { return b.used.Load() == 0 }, patience, time.Millisecond)
}
