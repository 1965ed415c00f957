package peer

import (
	"container/list"
	"context"
	"errors"
	"sync"
)

// errTooManyHandshakes ends the handshake of a connection that had to make room.
var errTooManyHandshakes = errors.New("too many connections are in their handshake; this was the oldest")

// handshakeLimiter bounds the connections that have not shown who they are. When one more comes, the oldest
// must go: an honest handshake takes a round trip or two, so the oldest pending connection is the
// likeliest to be idling in it, and to turn the new one away would let idlers keep everybody out.
type handshakeLimiter struct {
	max int

	mu      sync.Mutex // guards pending
	pending list.List  // of context.CancelCauseFunc, oldest first
}

// enter takes a place and returns how to give it up. It reports whether another had to go.
func (l *handshakeLimiter) enter(cancel context.CancelCauseFunc) (leave func(), crowded bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if crowded = l.pending.Len() >= l.max; crowded {
		oldest := l.pending.Front()
		l.pending.Remove(oldest).(context.CancelCauseFunc)(errTooManyHandshakes)
	}
	place := l.pending.PushBack(cancel)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.pending.Remove(place) // does nothing if it had to go
	}, crowded
}
