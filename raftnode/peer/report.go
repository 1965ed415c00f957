package peer

import (
	"encoding/binary"
	"time"

	"github.com/hashicorp/raft"
)

// Report is what a node tells its leader of itself. It comes with each answer to a heartbeat: it is
// new many times a second, costs no message, and passes where large messages do not.
type Report struct {
	At    time.Time     // when it was received; zero = never
	Write time.Duration // the longest of its latest writes to its disk
	Moved time.Duration // how long ago it knows that a leader gave way by itself; 0 = it knows of none
}

// reportMark begins a report. The field is Raft's for the address of who answers, which it does not
// read; no address begins so.
const reportMark = 0

func (r Report) append(b []byte) []byte {
	b = append(b, reportMark)
	b = binary.AppendUvarint(b, uint64(max(r.Write.Microseconds(), 0)))
	return binary.AppendUvarint(b, uint64(max(r.Moved.Milliseconds(), 0)))
}

// readReport reads a report; zero = there is none.
func readReport(b []byte) Report {
	if len(b) == 0 || b[0] != reportMark {
		return Report{}
	}
	write, n := binary.Uvarint(b[1:])
	moved, m := binary.Uvarint(b[1+max(n, 0):])
	if n <= 0 || m <= 0 || max(write, moved) > uint64(reportMax/time.Millisecond) {
		return Report{}
	}
	return Report{At: time.Now(), Write: time.Duration(write) * time.Microsecond, Moved: time.Duration(moved) * time.Millisecond}
}

// reportMax bounds the numbers of a report that is believed.
const reportMax = 1000 * time.Hour

// answerHeartbeat handles a heartbeat, and adds this node's report to the answer.
func (t *Transport) answerHeartbeat(c *inboundConn, request raft.RPC) {
	to, answers := request.RespChan, make(chan raft.RPCResponse, 1)
	request.RespChan = answers
	t.handleHeartbeat(c, request)
	select {
	case answer := <-answers:
		if resp, ok := answer.Response.(*raft.AppendEntriesResponse); ok && resp != nil && t.network.config.Report != nil {
			resp.Addr = t.network.config.Report().append(nil)
		}
		to <- answer
	case <-t.ctx.Done():
	}
}
