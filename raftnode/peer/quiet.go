package peer

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// quietFor is how long one complaint is not repeated: Raft dials again many times a second.
	quietFor = 10 * time.Second
	// complaintsMax bounds the complaints told apart; callers may invent ids, and those beyond
	// it share one.
	complaintsMax = 128
)

// quietLog logs each complaint at once, then at most once in quietFor with the number left out.
type quietLog struct {
	log *slog.Logger

	mu         sync.Mutex // guards complaints and what they point at
	complaints map[string]*complaint
}

type complaint struct {
	muted   bool
	leftOut int
}

func newQuietLog(log *slog.Logger) *quietLog {
	return &quietLog{log: log, complaints: map[string]*complaint{}}
}

func (q *quietLog) warn(key, message string, args ...any) {
	q.say(slog.LevelWarn, key, message, args)
}

func (q *quietLog) alarm(key, message string, args ...any) {
	q.say(slog.LevelError, key, message, args)
}

func (q *quietLog) say(level slog.Level, key, message string, args []any) {
	q.mu.Lock()
	c := q.find(key)
	leftOut := c.leftOut
	if c.muted {
		c.leftOut++
		q.mu.Unlock()
		return
	}
	c.muted, c.leftOut = true, 0
	q.mu.Unlock()

	time.AfterFunc(quietFor, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		c.muted = false
	})
	if leftOut > 0 {
		args = append(args, "left_out", leftOut)
	}
	q.log.Log(context.Background(), level, message, args...)
}

func (q *quietLog) find(key string) *complaint {
	if c := q.complaints[key]; c != nil {
		return c
	}
	if len(q.complaints) >= complaintsMax {
		for old, c := range q.complaints {
			if !c.muted {
				delete(q.complaints, old)
			}
		}
	}
	if len(q.complaints) >= complaintsMax {
		key = "the rest"
		if c := q.complaints[key]; c != nil {
			return c
		}
	}
	c := &complaint{}
	q.complaints[key] = c
	return c
}
