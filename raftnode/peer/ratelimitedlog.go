package peer

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// logEvery is how long one complaint is not repeated: Raft dials again many times a second.
	logEvery = 10 * time.Second
	// logLinesMax bounds the complaints told apart; callers may invent ids, and those beyond
	// it share one.
	logLinesMax = 128
)

// RateLimitedLog logs each complaint at once, then at most once in logEvery with the number left out.
type RateLimitedLog struct {
	log *slog.Logger

	mu    sync.Mutex // guards complaints and what they point at
	lines map[string]*logLine
}

type logLine struct {
	mutedUntil bool
	leftOut    int
}

// NewRateLimitedLog returns one that writes to log.
func NewRateLimitedLog(log *slog.Logger) *RateLimitedLog {
	return &RateLimitedLog{log: log, lines: map[string]*logLine{}}
}

// Info, Warn and Error log a complaint of their level. Those with one key are one.
func (q *RateLimitedLog) Info(key, message string, args ...any) {
	q.Log(slog.LevelInfo, key, message, args...)
}

func (q *RateLimitedLog) Warn(key, message string, args ...any) {
	q.Log(slog.LevelWarn, key, message, args...)
}

func (q *RateLimitedLog) Error(key, message string, args ...any) {
	q.Log(slog.LevelError, key, message, args...)
}

// Log logs a complaint.
func (q *RateLimitedLog) Log(level slog.Level, key, message string, args ...any) {
	if !q.log.Enabled(context.Background(), level) {
		return
	}
	q.mu.Lock()
	key, c := q.find(key)
	leftOut := c.leftOut
	if c.mutedUntil {
		c.leftOut++
		q.mu.Unlock()
		return
	}
	c.mutedUntil, c.leftOut = true, 0
	q.mu.Unlock()

	time.AfterFunc(logEvery, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if c.mutedUntil = false; c.leftOut == 0 && q.lines[key] == c {
			delete(q.lines, key) // nothing is left to be said of it
		}
	})
	if leftOut > 0 {
		args = append(args, "left_out", leftOut)
	}
	q.log.Log(context.Background(), level, message, args...)
}

// find returns the complaint of this key, or the one that those beyond logLinesMax share, and its key.
func (q *RateLimitedLog) find(key string) (string, *logLine) {
	if c := q.lines[key]; c != nil {
		return key, c
	}
	if len(q.lines) >= logLinesMax {
		for old, c := range q.lines {
			if !c.mutedUntil {
				delete(q.lines, old)
			}
		}
	}
	if len(q.lines) >= logLinesMax {
		key = "the rest"
		if c := q.lines[key]; c != nil {
			return key, c
		}
	}
	c := &logLine{}
	q.lines[key] = c
	return key, c
}
