package conns

import (
	"bufio"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
)

// flood sends so many of these frames, until the connection is closed.
func (c *rawClient) flood(frames int, frame func(i int) error) {
	out := bufio.NewWriterSize(c.Conn, 64<<10)
	c.Framer = http2.NewFramer(out, c.Conn)
	c.AllowIllegalWrites = true
	// the server may stop to read, which is its defence
	assert.NoError(c, c.SetWriteDeadline(time.Now().Add(time.Second)))
	for i := range frames {
		if frame(i) != nil {
			return
		}
	}
	_ = out.Flush()
}

// Floods of frames that gRPC answers, or keeps until it has written what is before them, take
// little memory, and others are served. The client reads nothing.
func TestFloodsOfFramesAreBounded(t *testing.T) {
	const (
		frames = 100_000
		budget = 4 << 20
		most   = 8 << 20
		calls  = 64 << 20 // if the frames begin calls: the connection may have a thousand
	)
	floods := map[string]func(*rawClient, int) error{
		"SETTINGS":      func(c *rawClient, _ int) error { return c.WriteSettings() },
		"PING":          func(c *rawClient, _ int) error { return c.WritePing(false, [8]byte{}) },
		"PING ack":      func(c *rawClient, _ int) error { return c.WritePing(true, [8]byte{}) },
		"WINDOW_UPDATE": func(c *rawClient, _ int) error { return c.WriteWindowUpdate(0, 1) },
		"PRIORITY": func(c *rawClient, _ int) error {
			return c.WritePriority(1, http2.PriorityParam{StreamDep: 3})
		},
		"empty DATA": func(c *rawClient, _ int) error { return c.WriteData(c.last, false, nil) },
		"RST_STREAM": func(c *rawClient, _ int) error {
			return c.WriteRSTStream(c.last, http2.ErrCodeCancel)
		},
		"rapid reset": func(c *rawClient, i int) error {
			if i%2 == 0 {
				return c.open("held")
			}
			return c.WriteRSTStream(c.last, http2.ErrCodeCancel)
		},
		"no such method": func(c *rawClient, _ int) error { return c.open("none") },
		"CONTINUATION": func(c *rawClient, i int) error {
			if c.last++; i == 0 {
				return c.WriteHeaders(http2.HeadersFrameParam{StreamID: 3})
			}
			return c.WriteContinuation(3, false, []byte("\x40\x01a\x7f\x00"))
		},
	}
	for name, frame := range floods {
		for _, blocked := range []bool{false, true} {
			if blocked {
				name += " while the server can't write"
			}
			t.Run(name, func(t *testing.T) {
				bytes := int64(budget)
				if blocked {
					bytes = math.MaxInt64
				}
				s := serve(t, bytes, 10)
				other := s.dial(t)
				require.NoError(t, request(t, other, 1))
				c := s.raw(t)
				if blocked {
					require.NoError(t,
						c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize,
							Val: 1 << 30}))
					require.NoError(t, c.WriteWindowUpdate(0, 1<<30))
					require.NoError(t, c.request("big", 16<<20))
					before := int64(0)
					// it writes until the buffers of the kernel are full
					require.Eventually(t, func() bool {
						now := s.used.Load()
						defer func() { before = now }()
						return now > 0 && now == before
					}, patience, 20*time.Millisecond)
				} else {
					require.NoError(t, c.open("echo"))
				}
				before := heap()
				c.flood(frames, func(i int) error { return frame(c, i) })
				bound := int64(most)
				if strings.HasPrefix(name, "rapid") || strings.HasPrefix(name, "no such") {
					bound = calls
				}
				t.Logf("the heap grew by %d KiB", grownLess(t, before, bound)>>10)
				require.NoError(t, request(t, other, 1))
			})
		}
	}
}

// A client that opens calls and resets them at once (rapid reset) has no more handlers at a time
// than a connection may have calls: the server reads the next ones as the handlers end. Nothing of
// them remains.
func TestRapidResetsLeaveNothing(t *testing.T) {
	const resets = 30_000
	s := serve(t, math.MaxInt64, 10)
	other := s.dial(t)
	require.NoError(t, request(t, other, 1))
	c := s.raw(t)
	c.discard()
	before, open := heap(), 0
	c.flood(2*resets, func(i int) error {
		if i%2 == 0 {
			open++
			return c.request("held", 1)
		}
		return c.WriteRSTStream(c.last, http2.ErrCodeCancel)
	})
	t.Logf("%d calls were reset; up to %d handlers ran at a time", open, s.most.Load())
	assert.Positive(t, s.most.Load())
	assert.LessOrEqual(t, s.most.Load(), int32(callsMax))
	require.NoError(t, request(t, other, 1), "others are served meanwhile")
	assert.Eventually(t, func() bool {
		return s.running.Load() == 0 && s.calls() == 0 && s.used.Load() == 0
	}, patience, 10*time.Millisecond,
		"the connection is open, and has nothing: %d handlers, %d calls, %d bytes",
		s.running.Load(), s.calls(), s.used.Load())
	assert.Less(t, grownLess(t, before, 8<<20), int64(8<<20))
}

// A compressed message is refused before anything is decompressed: no compressor is linked.
func TestCompressedMessagesAreRefused(t *testing.T) {
	assert.Nil(t, encoding.GetCompressor("gzip"))
	s := serve(t, math.MaxInt64, 10)
	c := s.raw(t)
	require.NoError(t, c.open("big", hpack.HeaderField{Name: "grpc-encoding", Value: "gzip"}))
	require.NoError(t, c.WriteData(c.last, true, append([]byte{1}, encoded(1)[1:]...)))
	require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
	c.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	for {
		f, err := c.ReadFrame()
		require.NoError(t, err)
		if h, is := f.(*http2.MetaHeadersFrame); is {
			for _, field := range h.Fields {
				if field.Name == "grpc-status" {
					assert.Equal(t, strconv.Itoa(int(codes.Unimplemented)), field.Value)
					return
				}
			}
		}
	}
}
