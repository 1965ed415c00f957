package conns

import (
	"bytes"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// FuzzConnection sends bytes as a client does, behind the preface of HTTP/2, and ends its half of
// the connection. Whatever it sent, nothing remains of the connection: no slot, no call and no byte
// of the budget.
func FuzzConnection(f *testing.F) {
	frames := func(write func(c *rawClient)) {
		var sent bytes.Buffer
		c := &rawClient{TB: f, Framer: http2.NewFramer(&sent, nil)}
		c.AllowIllegalWrites = true
		_ = c.WriteSettings()
		write(c)
		f.Add(sent.Bytes())
	}
	frames(func(c *rawClient) { _ = c.request("big", 100) })
	frames(func(c *rawClient) {
		_ = c.request("held", 1)
		_ = c.WriteRSTStream(c.last, http2.ErrCodeCancel)
		_ = c.open("echo")
		_ = c.send(message(9, 4), 3)
		_ = c.WritePing(false, [8]byte{1})
	})
	frames(func(c *rawClient) {
		_ = c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1},
			http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 24})
		_ = c.request("big", 70_000)
		_ = c.WriteWindowUpdate(c.last, 1<<31-1)
		_ = c.WriteGoAway(c.last, http2.ErrCodeNo, []byte("x"))
	})
	frames(func(c *rawClient) {
		_ = c.open("none", hpack.HeaderField{Name: "grpc-timeout", Value: "1n"},
			hpack.HeaderField{Name: "x-bin", Value: "A"})
		_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: 9})
		_ = c.WriteContinuation(9, true, []byte("\x40\x01a\x7f\x00"))
	})
	s := serve(f, 1<<20, 10)
	f.Fuzz(func(t *testing.T, sent []byte) {
		raw, err := net.Dial("tcp", s.address)
		require.NoError(t, err)
		conn := raw.(*net.TCPConn)
		defer conn.Close()
		require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
		read := make(chan error, 1)
		go func() {
			_, err := io.Copy(io.Discard, conn)
			read <- err
		}()
		_, err = conn.Write(append([]byte(http2.ClientPreface), sent...))
		if err == nil { // otherwise the server has closed it
			_ = conn.CloseWrite()
		}
		if err := <-read; err != nil {
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded,
				"the server did not close the connection")
		}
		nothing := func() bool { return s.used.Load() == 0 && s.calls() == 0 && s.open() == 0 }
		require.True(t, nothing() || assert.Eventually(t, nothing, patience, time.Millisecond),
			"%d bytes, %d calls, %d connections", s.used.Load(), s.calls(), s.open())
	})
}

// open is how many connections there are.
func (s *server) open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}
