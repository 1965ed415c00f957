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

// QuietLog logs each complaint at once, then at most once in quietFor with the number left out.
type QuietLog struct {
	log *slog.Logger

	mu         sync.Mutex // guards complaints and what they point at
	complaints map[string]*complaint
}

type complaint struct {
	muted   bool
	leftOut int
}

// NewQuietLog returns one that writes to log.
func NewQuietLog(log *slog.Logger) *QuietLog {
	return &QuietLog{log: log, complaints: map[string]*complaint{}}
}

// Info, Warn and Error log a complaint of their level. Those with one key are one.
func (q *QuietLog) Info(key, message string, args ...any) {
	q.Log(slog.LevelInfo, key, message, args...)
}

func (q *QuietLog) Warn(key, message string, args ...any) {
	q.Log(slog.LevelWarn, key, message, args...)
}

func (q *QuietLog) Error(key, message string, args ...any) {
	q.Log(slog.LevelError, key, message, args...)
}

// Log logs a complaint.
func (q *QuietLog) Log(level slog.Level, key, message string, args ...any) {
	if !q.log.Enabled(context.Background(), level) {
		return
	}
	q.mu.Lock()
	key, c := q.find(key)
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
		if c.muted = false; c.leftOut == 0 && q.complaints[key] == c {
			delete(q.complaints, key) // nothing is left to be said of it
		}
	})
	if leftOut > 0 {
		args = append(args, "left_out", leftOut)
	}
	q.log.Log(context.Background(), level, message, args...)
}

// find returns the complaint of this key, or the one that those beyond complaintsMax share, and its key.
func (q *QuietLog) find(key string) (string, *complaint) {
	if c := q.complaints[key]; c != nil {
		return key, c
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
			return key, c
		}
	}
	c := &complaint{}
	q.complaints[key] = c
	return key, c
}
