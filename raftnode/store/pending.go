package store

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/hashicorp/raft"
)

// What is pending is bounded; an entry that does not fit is written before raft continues. The
// cache of the log holds all that is pending.
const (
	pendingMax      = LogCacheEntries
	pendingBytesMax = 16 << 20
)

// pending are the entries that raft counts as stored and that are not on the disk yet (S16), in
// order. One goroutine writes them, while there are any.
type pending struct {
	mu      sync.Mutex // guards what follows, and changes of the log's extent
	entries []*raft.Log
	bytes   int
	written chan struct{} // closed when some have been written; nil = nothing waits for that
}

func (p *pending) size() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bytes
}

// postpone makes entries pending, if they may be, and reports whether it did. The question and the
// change are one step: a term is written after this node has ceased to lead, and then waits for
// what is pending.
func (l *raftLog) postpone(entries, sealed []*raft.Log) bool {
	p := &l.pending
	p.mu.Lock()
	defer p.mu.Unlock()
	bytes := bytesOf(sealed)
	if len(p.entries)+len(entries) > pendingMax || p.bytes+bytes > pendingBytesMax ||
		l.record.ended() != nil || !l.mayPostpone(entries) {
		return false
	}
	next, err := l.extent.Load().plus(entries)
	if err != nil {
		return false
	}
	if len(p.entries) == 0 {
		go l.writePending()
	}
	p.entries, p.bytes = append(p.entries, sealed...), p.bytes+bytes
	l.show(entries, next)
	return true
}

// writePending writes what has gathered, in one append, until nothing is pending. After a failure
// the rest stays pending: the process ends.
func (l *raftLog) writePending() {
	p := &l.pending
	for more := true; more; {
		p.mu.Lock()
		entries := p.entries
		p.mu.Unlock()
		if l.write(OpAppend, len(entries),
			func() error { return l.engine.StoreLogs(entries) }) != nil {
			return
		}
		l.written(entries)
		p.mu.Lock()
		p.bytes -= bytesOf(entries)
		p.entries = slices.Delete(p.entries, 0, len(entries))
		more = len(p.entries) > 0
		if p.written != nil {
			close(p.written)
			p.written = nil
		}
		p.mu.Unlock()
	}
}

// waitWritten returns nil when no entry up to index is pending. It returns an error if ctx, or all
// writing, ends before that.
func (l *raftLog) waitWritten(ctx context.Context, index uint64) error {
	p := &l.pending
	for {
		p.mu.Lock()
		if len(p.entries) == 0 || p.entries[0].Index > index {
			p.mu.Unlock()
			return nil
		}
		if p.written == nil {
			p.written = make(chan struct{})
		}
		written := p.written
		p.mu.Unlock()
		select {
		case <-written:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-l.record.ctx.Done():
			return l.record.ended()
		}
	}
}

// flush waits for what is pending now, and ends the process, as a failed write does, if that will
// not be written.
func (l *raftLog) flush() error {
	l.pending.mu.Lock()
	last := l.extent.Load().last // under the lock: with what is just becoming pending
	l.pending.mu.Unlock()
	err := l.waitWritten(context.Background(), last)
	if err != nil && !errors.Is(err, ErrClosed) {
		l.record.fatal(err)
	}
	return err
}

// bytesOf is how many bytes entries count in the admission.
func bytesOf(entries []*raft.Log) (bytes int) {
	for _, entry := range entries {
		bytes += len(entry.Data) + len(entry.Extensions)
	}
	return bytes
}
