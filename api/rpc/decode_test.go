package rpc

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"zamok/api/zamokpb"
)

// TestADecodedFrameIsBounded: what a client sends is checked once it is decoded, and takes a
// multiple of its length then. Of the largest frames, those of empty messages and those of empty
// locks take most.
func TestADecodedFrameIsBounded(t *testing.T) {
	const most = 4 << 20
	fill := func(field protowire.Number, bytes int) (frame []byte) {
		for empty := protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType),
			nil); len(frame)+len(empty) <= bytes; {
			frame = append(frame, empty...)
		}
		return frame
	}
	wrap := func(field protowire.Number, m []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), m)
	}
	acquire := append(fill(2, receiveBytesMax-100), bytes.Repeat([]byte{0x38, 1}, 10)...)
	for name, frame := range map[string][]byte{
		"messages":             fill(1, receiveBytesMax),
		"locks of one message": wrap(1, wrap(2, acquire)),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		require.NoError(t, proto.Unmarshal(frame, &zamokpb.ClientFrame{}))
		runtime.ReadMemStats(&after)
		allocated := int(after.TotalAlloc - before.TotalAlloc)
		t.Logf("%d bytes with empty %s: %d bytes were allocated, %d times as many", len(frame),
			name, allocated, allocated/len(frame))
		assert.Less(t, allocated, most+most/8, name)
	}
}
