package peer

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// A status comes back as it was sent; anything else is ignored, above all the address that Raft has
// in its place.
func TestReportsAreReadAsTheyWereSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, r := range []HeartbeatStatus{
			{}, {Write: time.Microsecond}, {Write: 3 * time.Second, Moved: time.Minute},
			{Write: time.Hour, Moved: time.Millisecond},
		} {
			sent := r.append(nil)
			r.At = time.Now()
			assert.Equal(t, r, readStatus(sent))
			assert.Zero(t, readStatus(sent[:len(sent)-1]), "cut off")
		}
		absurd := binary.AppendUvarint(binary.AppendUvarint([]byte{statusMark}, math.MaxUint64), 0)
		for _, none := range [][]byte{nil, {}, []byte("10.0.0.1:5751"), {statusMark}, absurd,
			bytes.Repeat([]byte{0xff}, 32)} {
			assert.Zero(t, readStatus(none), "%x", none)
		}
	})
}
