package service

import (
	"time"

	"zamok/api/push"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/raftnode"
)

// # Overload
//
// A client that sends more than the cluster can do is slowed down by flow control. Its stream is
// not read, so it can't send, and neither its requests nor their refusals take the processors from
// other clients. Three bounds, from the stream to the log:
//
//  1. A stream with refused acquisitions is not read for a while (refusalDelay).
//  2. While the queue in front of the log is crowded, a stream may have few acquisitions in it
//     (crowdedMax). The others of the frame wait for room, and those that find none are refused
//     together, which costs a fraction of carrying them out.
//  3. An acquisition that the queue does not propose soon is refused (queueWaitMax of package
//     raftnode).
//
// Releases and renewals are never refused for that; they wait behind the acquisitions that their
// own client has sent before.

const (
	// While more waits than the next entry of the log can take, a stream may have crowdedMax of
	// them. A further acquisition waits until half of these are answered, for crowdedWaitMax at
	// most from the arrival of its frame.
	crowdedMax     = 12
	crowdedWaitMax = 50 * time.Millisecond
	// Each acquisition that a stream sends lets it wait for crowdedWaitEach, so that a renewal
	// behind as many as a session may have comes within two seconds.
	crowdedWaitEach = time.Millisecond
	// A stream with acquisitions that were refused because of overload is not read for refusalDelay
	// for each of them, and at most for refusalDelayMax. So flow control slows down a client that
	// sends more than the cluster can do, and refusals don't take the processors.
	refusalDelay    = 500 * time.Microsecond
	refusalDelayMax = 250 * time.Millisecond
)

// readFrames handles frames until there is an error, and sleeps when acquisitions were refused
// because of overload.
func (st *stream) readFrames() error {
	for {
		p, err := st.frames.Recv()
		if err == nil {
			err = st.handle(p)
		}
		if err != nil {
			return err
		}
		if refused := st.overloads.Swap(0); refused > 0 {
			st.sleep(min(time.Duration(refused)*refusalDelay, refusalDelayMax))
		}
	}
}

// sleep waits, at most until the stream ends.
func (st *stream) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-st.ended:
	case <-st.ctx.Done():
	}
}

// refuseUnqueued refuses acquisitions with one answer for each run of consecutive tickets: a
// refusal of its own for each would cost nearly as much as to carry it out.
func (st *stream) refuseUnqueued(frame push.Frame, unqueued []*zamokpb.Acquire) {
	for len(unqueued) > 0 {
		n, first := 1, unqueued[0]
		for n < len(unqueued) && unqueued[n].GetTicket() == first.GetTicket()+uint64(n) &&
			unqueued[n].GetFirst() == first.GetFirst() {
			n++
		}
		refusal := wire.OfRetransmission(raftnode.ErrOverloaded, first.GetFirst())
		for range n {
			st.server.Answered(st.ctx, frame.Arrived, refusal)
		}
		st.overloads.Add(int64(n))
		st.queue.Refuse(first.GetTicket(), unqueued[n-1].GetTicket(), refusal)
		unqueued = unqueued[n:]
	}
}

// hasRoom waits until the stream may submit a further acquisition, and reports whether it may in
// time.
func (st *stream) hasRoom(arrived time.Time) bool {
	st.mayWait = min(st.mayWait+crowdedWaitEach, crowdedWaitMax)
	for st.acquiring.Load() >= crowdedMax && st.server.node.Crowded() {
		began := time.Now()
		left := min(st.mayWait, arrived.Add(crowdedWaitMax).Sub(began))
		if left <= 0 {
			return false
		}
		timer := time.NewTimer(left)
		select {
		case <-st.drained:
		case <-timer.C:
		case <-st.ended:
			timer.Stop()
			return false
		}
		timer.Stop()
		st.mayWait -= time.Since(began)
	}
	return true
}
