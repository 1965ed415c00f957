package peer

import (
	"time"

	"github.com/hashicorp/raft"
)

// # The lease of a leader
//
// A leader steps down when no majority has answered for its lease. Raft takes a lease when it is
// opened, and no other one while it runs. So it is opened with a short one, and this Transport
// makes that longer: it tells raft at once that a heartbeat was answered, if an earlier one was a
// short time ago (within the extension), and sends it beside raft. A leader then steps down after
// the extension and raft's lease without an answer.
//
// Nothing but a leader's stepping down may depend on what raft hears of heartbeats, and of appends
// with nothing new for a follower. So raft's VerifyLeader, which also counts them, must not be used
// (N5 of package raftnode).

// With the default timeouts, raft sends each follower a heartbeat every 25 to 50 ms, and an append
// without entries every 50 to 100 ms. Of the heartbeats, one in beatsEvery is sent at most, and
// extensionBeats within the extension if that is shorter. Of the appends with nothing new for it,
// one in repeatEvery, or all while it does not answer.
const (
	beatsEvery     = 50 * time.Millisecond
	extensionBeats = 5
	repeatEvery    = time.Second
)

// beat is a heartbeat that is sent beside raft.
type beat struct {
	sent time.Time
	done chan struct{} // closed when resp and err are set
	resp raft.AppendEntriesResponse
	err  error
}

// SetLeaseExtension sets how much longer a leader's lease is than the one that raft was opened
// with.
func (t *Transport) SetLeaseExtension(extension time.Duration) {
	t.extension.Store(int64(extension))
}

// isHeartbeat reports whether raft sent an append to renew its lease. It is answered beside the
// main loop of its receiver.
func isHeartbeat(args *raft.AppendEntriesRequest) bool {
	return len(args.Entries) == 0 && args.PrevLogEntry == 0 && args.PrevLogTerm == 0 &&
		args.LeaderCommitIndex == 0
}

// sendHeartbeat sends a heartbeat, and waits for the answer once that is needed.
func (t *Transport) sendHeartbeat(id raft.ServerID, at raft.ServerAddress,
	args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	extension := time.Duration(t.extension.Load())
	b, wait := t.beginHeartbeat(id, at, args, extension)
	switch {
	case b == nil:
		return t.sendAppend(id, at, args, resp)
	case wait:
		<-b.done
		*resp = b.resp
		return b.err
	}
	*resp = raft.AppendEntriesResponse{} // raft has its latest answer there
	return nil
}

// beginHeartbeat sends a heartbeat beside raft, unless the latest one is not answered or was sent
// just now, and reports whether raft must wait for the answer. Without an extension it does
// nothing, nor for an earlier term.
func (t *Transport) beginHeartbeat(id raft.ServerID, at raft.ServerAddress,
	args *raft.AppendEntriesRequest, extension time.Duration) (b *beat, wait bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.follower(id)
	t.enterTerm(f, args.Term)
	if extension <= 0 || f.term != args.Term || t.ctx.Err() != nil {
		return nil, false
	}
	now := time.Now()
	wait = f.silent(now) >= extension
	if f.beat != nil && (!f.beat.over() ||
		!wait && now.Sub(f.beat.sent) < min(beatsEvery, extension/extensionBeats)) {
		return f.beat, wait
	}
	b = &beat{sent: now, done: make(chan struct{})}
	f.beat = b
	t.background.Go(func() {
		defer close(b.done)
		request := *args
		b.err = t.sendAppend(id, at, &request, &b.resp)
	})
	return b, wait
}

// silent is how long a server has answered nothing.
func (f *follower) silent(now time.Time) time.Duration {
	heard := f.at
	if f.began.After(heard) {
		heard = f.began // as raft does
	}
	return now.Sub(heard)
}

// repeat answers an append with nothing but what a server has confirmed just before, as if it was
// sent, and reports whether it did. As with heartbeats, raft hears of an answer within the
// extension. A server that begins anew knows nothing of what is committed; it has ended its
// connections, so the next call fails, and then it gets the next append. While a heartbeat is not
// answered, appends are sent beside it: its packet may be lost.
func (t *Transport) repeat(id raft.ServerID, args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse) bool {
	extension := time.Duration(t.extension.Load())
	t.mu.Lock()
	defer t.mu.Unlock()
	f, now := t.follower(id), time.Now()
	late := f.beat != nil && !f.beat.over() && now.Sub(f.beat.sent) >= beatsEvery
	if len(args.Entries) > 0 || f.confirmed != contentOf(args) ||
		now.Sub(f.confirmedAt) >= repeatEvery || f.lost || late || f.silent(now) >= extension {
		return false
	}
	*resp = raft.AppendEntriesResponse{Term: args.Term, LastLog: f.lastLog, Success: true}
	return true
}

// content is what an append without entries has.
type content struct{ term, previous, previousTerm, committed uint64 }

func contentOf(args *raft.AppendEntriesRequest) content {
	return content{args.Term, args.PrevLogEntry, args.PrevLogTerm, args.LeaderCommitIndex}
}

func (b *beat) over() bool {
	select {
	case <-b.done:
		return true
	default:
		return false
	}
}
