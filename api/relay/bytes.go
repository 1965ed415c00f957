package relay

import (
	"context"
	"runtime"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"zamok/api/gate"
	"zamok/api/gate/limits"
	"zamok/api/wire"
	"zamok/api/zamokpb"
)

const (
	// relayedMin is the least that a relayed message counts: gRPC reports the end of a buffer only
	// if that is larger than mem.BufferPoolingThreshold.
	relayedMin = 1<<10 + 1
	// relayedCallBytes is about what a relayed call takes beside its request. Held calls and
	// streams do not count it, since limits bound their number.
	relayedCallBytes = 16 << 10
	// itemBytes is what a decoded lock of an acquisition takes beside its name. Encoded it may be
	// two bytes.
	itemBytes = 128
)

// relayed is a message that is passed on to another node. Its bytes count for their caller until
// gRPC has written them, or has dropped them with the stream or the connection. A connection that
// ends drops some without a report: then they count until the garbage collector has them.
type relayed struct {
	proto.Message
	end func()
}

// relay counts a message, and as many bytes beside it, or refuses it.
func relay(l *limits.Limits, who string, m proto.Message, beside int) (*relayed, error) {
	end, err := l.OpenMany(limits.RelayedBytes, who, max(proto.Size(m), relayedMin)+beside)
	if err != nil {
		return nil, err
	}
	r := &relayed{m, end}
	runtime.AddCleanup(r, func(end func()) { end() }, end)
	return r, nil
}

// relayedRequest is the request of a unary call. The call ends it: until then the request is kept,
// whether it was sent or not.
func (r *Relay) relayedRequest(ctx context.Context, d *gate.Request,
	request proto.Message) (*relayed, error) {
	beside := relayedCallBytes
	if d.Lasts {
		beside = d.Items(request) * itemBytes
	}
	return relay(r.Limits, gate.CallerOf(ctx).Principal(), request, beside)
}

// relayedFrames is a stream to another node.
type relayedFrames struct {
	grpc.ClientStream
	limits *limits.Limits
	who    string
}

func (f relayedFrames) SendMsg(m any) error {
	r, err := relay(f.limits, f.who, m.(proto.Message), 0)
	if err != nil {
		return wire.StreamEnded(zamokpb.Code_CODE_OVERLOADED,
			"the stream ends, because the leader does not take what this node passes on to it: "+
				"the last frame was not passed on, and of those before it the outcome is "+
				"unknown: %v", err)
	}
	return f.ClientStream.SendMsg(frame{r})
}

// frame is a message of a stream, which ends when its buffer does.
type frame struct{ *relayed }

// Get implements mem.BufferPool. gRPC calls Put with the buffer that Marshal has made, when it
// needs it no more.
func (frame) Get(n int) *[]byte { b := make([]byte, n); return &b }

// Put implements mem.BufferPool.
func (f frame) Put(*[]byte) { f.end() }

// relayCodec encodes relayed messages.
type relayCodec struct{}

// Name implements encoding.CodecV2.
func (relayCodec) Name() string { return grpcproto.Name }

// Marshal implements encoding.CodecV2.
func (relayCodec) Marshal(v any) (mem.BufferSlice, error) {
	f, streams := v.(frame)
	if !streams {
		if r, unary := v.(*relayed); unary {
			v = r.Message
		}
		return encoding.GetCodecV2(grpcproto.Name).Marshal(v)
	}
	b, err := proto.MarshalOptions{}.MarshalAppend(
		make([]byte, 0, max(proto.Size(f.Message), relayedMin)), f.Message)
	if err != nil {
		return nil, err
	}
	return mem.BufferSlice{mem.NewBuffer(&b, f)}, nil
}

// Unmarshal implements encoding.CodecV2.
func (relayCodec) Unmarshal(data mem.BufferSlice, v any) error {
	return encoding.GetCodecV2(grpcproto.Name).Unmarshal(data, v)
}
