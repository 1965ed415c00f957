package peer

import (
	"encoding/binary"
	"time"

	"github.com/hashicorp/raft"
)

// HeartbeatStatus is what a node tells its leader of itself. It comes with each answer to a
// heartbeat: it is new many times a second, costs no message, and passes where large messages do
// not.
type HeartbeatStatus struct {
	At    time.Time     // when it was received; zero = never
	Write time.Duration // the longest of its latest writes to its disk
	// how long ago it knows that a leader gave way by itself; 0 = it knows of none
	Moved time.Duration
}

// statusMark begins a report. The field is Raft's for the address of who answers, which it does not
// read; no address begins so.
const statusMark = 0

func (r HeartbeatStatus) append(b []byte) []byte {
	b = append(b, statusMark)
	b = binary.AppendUvarint(b, uint64(max(r.Write.Microseconds(), 0)))
	return binary.AppendUvarint(b, uint64(max(r.Moved.Milliseconds(), 0)))
}

// readStatus reads a status; zero = there is none.
func readStatus(b []byte) HeartbeatStatus {
	if len(b) == 0 || b[0] != statusMark {
		return HeartbeatStatus{}
	}
	write, n := binary.Uvarint(b[1:])
	moved, m := binary.Uvarint(b[1+max(n, 0):])
	if n <= 0 || m <= 0 || max(write, moved) > uint64(statusMax/time.Millisecond) {
		return HeartbeatStatus{}
	}
	return HeartbeatStatus{At: time.Now(), Write: time.Duration(write) * time.Microsecond,
		Moved: time.Duration(moved) * time.Millisecond}
}

// statusMax bounds the numbers of a status that is believed.
const statusMax = 1000 * time.Hour

// answerHeartbeat handles a heartbeat, and adds this node's status to the answer.
func (t *Transport) answerHeartbeat(c *inboundConn, request raft.RPC) {
	to, answers := request.RespChan, make(chan raft.RPCResponse, 1)
	request.RespChan = answers
	t.handleHeartbeat(c, request)
	select {
	case answer := <-answers:
		if resp, ok := answer.Response.(*raft.AppendEntriesResponse); ok && resp != nil &&
			t.network.config.HeartbeatStatus != nil {
			resp.Addr = t.network.config.HeartbeatStatus().append(nil)
		}
		to <- answer
	case <-t.ctx.Done():
	}
}
