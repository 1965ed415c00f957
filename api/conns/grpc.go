package conns

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"

	"zamok/api/wire"
)

const (
	// receiveWait is the time limit for the request, or first message, of a call.
	receiveWait = 10 * time.Second
	// openFrames is the cost of a call without a request, in frames: with its headers and its
	// goroutine it takes about 16 KiB.
	openFrames = 16 << 10 / frameBytes
	// readBytes is the buffer of a connection, instead of gRPC's.
	readBytes = 4 << 10
	// prefixBytes is the length of the prefix of a gRPC message.
	prefixBytes = 5
)

// Options returns the options of a gRPC server that serves connections of Budget.Listen.
func (b *Budget) Options(creds credentials.TransportCredentials) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.Creds(framing{creds}),
		grpc.ReadBufferSize(0), // a framed connection has its own, and is read a frame at a time
		grpc.InTapHandle(begin), grpc.ChainUnaryInterceptor(unary),
		grpc.ChainStreamInterceptor(stream),
	}
}

// framing wraps connections as framed, inside of TLS if there is any.
type framing struct {
	credentials.TransportCredentials
}

func (f framing) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := f.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	own := raw.(*Conn)
	in := &framed{Conn: conn, own: own, in: bufio.NewReaderSize(conn, readBytes),
		left: prefaceBytes}
	own.framed = in
	return in, info, nil
}

// framed is a connection that parses the passing HTTP/2 frames in both directions. Each direction
// has one goroutine.
type framed struct {
	net.Conn
	own *Conn

	in     *bufio.Reader
	left   int    // of the frame that is being read
	stream uint32 // whose frame was read last

	head        [frameHead]byte // of the frame that is being written
	headWritten int
	leftToWrite int
}

// HTTP/2 (RFC 9113): a client begins with a preface. A frame has a head of 9 bytes: its length,
// type, flags and stream.
const (
	prefaceBytes = 24
	frameHead    = 9
	// of the bytes behind a head: gRPC takes no more, and ends the connection
	frameMost = 16 << 10

	frameData    = 0
	frameHeaders = 1
	frameReset   = 3

	flagEndStream = 0x1
	flagPadded    = 0x8
)

type frame struct {
	bytes       int
	kind, flags byte
	stream      uint32
}

func parseFrame(head []byte) frame {
	return frame{
		bytes: int(head[0])<<16 | int(head[1])<<8 | int(head[2]), kind: head[3], flags: head[4],
		stream: binary.BigEndian.Uint32(head[5:]) &^ (1 << 31),
	}
}

// Read reads at most to the end of a frame. So when gRPC begins a call, the last frame that was
// read is its HEADERS frame.
func (f *framed) Read(b []byte) (int, error) {
	n, err := f.read(b)
	// with TLS it is a message (close_notify), which Conn.Read does not see
	if errors.Is(err, io.EOF) {
		_ = f.own.recordBreak(err)
	}
	return n, err
}

func (f *framed) read(b []byte) (int, error) {
	if f.left == 0 {
		head, err := f.in.Peek(frameHead)
		if err != nil {
			return 0, err
		}
		next := parseFrame(head)
		f.left, f.stream = frameHead+next.bytes, next.stream
		switch next.kind {
		case frameData:
			bytes := min(next.bytes, frameMost)
			if bytes > 0 && next.flags&flagPadded != 0 { // gRPC doesn't keep the padding
				padded, err := f.in.Peek(frameHead + 1)
				if err != nil {
					return 0, err
				}
				bytes -= 1 + int(padded[frameHead])
			}
			if call := f.own.call(f.stream); call != nil && bytes > 0 {
				call.receive(bytes, 1)
			}
		case frameReset:
			f.own.end(f.stream)
		}
	}
	n, err := f.in.Read(b[:min(len(b), f.left)])
	f.left -= n
	return n, err
}

func (f *framed) Write(b []byte) (int, error) {
	n, err := f.Conn.Write(b)
	f.written(b[:n])
	return n, err
}

// written counts the written bytes of answers.
func (f *framed) written(b []byte) {
	for len(b) > 0 {
		if f.headWritten < frameHead {
			n := copy(f.head[f.headWritten:], b)
			f.headWritten, b = f.headWritten+n, b[n:]
			if f.headWritten < frameHead {
				return
			}
			f.leftToWrite = parseFrame(f.head[:]).bytes
		}
		n := min(f.leftToWrite, len(b))
		f.leftToWrite, b = f.leftToWrite-n, b[n:]
		now := parseFrame(f.head[:])
		if call := f.own.call(now.stream); call != nil && now.kind == frameData {
			call.sent(n)
		}
		if f.leftToWrite > 0 {
			return
		}
		f.headWritten = 0
		if now.kind == frameReset || now.kind == frameHeaders && now.flags&flagEndStream != 0 {
			f.own.end(now.stream)
		}
	}
}

type callKey struct{}

// begin adds a call when gRPC has read its headers, on the goroutine that reads the connection. A
// call without a request ends after receiveWait.
func begin(ctx context.Context, _ *tap.Info) (context.Context, error) {
	conn := Of(ctx)
	ctx, cancel := context.WithCancel(ctx) // gRPC cancels its parent when the call ends
	begun := conn.begin(conn.framed.stream, time.AfterFunc(receiveWait, cancel))
	begun.receive(0, openFrames)
	return context.WithValue(ctx, callKey{}, begun), nil
}

// message counts a message that a handler has received.
func (c *call) message(m any) {
	c.stopWaiting()
	c.received(prefixBytes + proto.Size(m.(proto.Message)))
}

// answer counts a message that a handler sends.
func (c *call) answer(m any) { c.send(prefixBytes + proto.Size(m.(proto.Message))) }

// failed counts the error that a call ends with, which travels in its last frame.
func (c *call) failed(err error) {
	if e := (*wire.Error)(nil); errors.As(err, &e) {
		c.send(proto.Size(e.Info))
	}
}

func unary(ctx context.Context, request any, _ *grpc.UnaryServerInfo,
	handle grpc.UnaryHandler) (any, error) {
	call := ctx.Value(callKey{}).(*call)
	call.message(request)
	answer, err := handle(ctx, request)
	if err != nil {
		call.failed(err)
	} else {
		call.answer(answer)
	}
	return answer, err
}

func stream(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo,
	handle grpc.StreamHandler) error {
	call := s.Context().Value(callKey{}).(*call)
	err := handle(srv, counted{s, call})
	call.failed(err)
	return err
}

// counted is a stream that counts its messages.
type counted struct {
	grpc.ServerStream
	call *call
}

func (c counted) RecvMsg(m any) error {
	err := c.ServerStream.RecvMsg(m)
	if err == nil {
		c.call.message(m)
	}
	return err
}

func (c counted) SendMsg(m any) error {
	c.call.answer(m)
	return c.ServerStream.SendMsg(m)
}
