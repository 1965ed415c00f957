package peer

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"
)

const (
	// logEvery is how long one message is not repeated: Raft dials again many times a second.
	logEvery = 10 * time.Second
	// logLinesMax bounds the messages that are counted separately; callers may invent ids, and
	// those beyond it share one line.
	logLinesMax = 128
)

// RateLimitedLog logs each message at once, then at most once in logEvery with the number of those
// left out.
type RateLimitedLog struct {
	log *slog.Logger

	mu    sync.Mutex // guards lines
	lines map[string]logLine
}

type logLine struct {
	mutedUntil time.Time
	suppressed int
}

// NewRateLimitedLog returns one that writes to log.
func NewRateLimitedLog(log *slog.Logger) *RateLimitedLog {
	return &RateLimitedLog{log: log, lines: map[string]logLine{}}
}

// Log logs a message. Messages with the same key count as repetitions of one.
func (q *RateLimitedLog) Log(level slog.Level, key, message string, args ...any) {
	now := time.Now()
	q.mu.Lock()
	if _, known := q.lines[key]; !known {
		// Remove what may be logged again and, unless the table is full, has no repetitions to
		// report.
		full := len(q.lines) >= logLinesMax
		maps.DeleteFunc(q.lines, func(_ string, l logLine) bool {
			return !now.Before(l.mutedUntil) && (full || l.suppressed == 0)
		})
		if len(q.lines) >= logLinesMax {
			key = "the rest"
		}
	}
	line := q.lines[key]
	muted, suppressed := now.Before(line.mutedUntil), line.suppressed
	if muted {
		line.suppressed++
	} else {
		line = logLine{mutedUntil: now.Add(logEvery)}
	}
	q.lines[key] = line
	q.mu.Unlock()
	if muted {
		return
	}
	if suppressed > 0 {
		args = append(args, "left_out", suppressed)
	}
	q.log.Log(context.Background(), level, message, args...)
}

func (q *RateLimitedLog) warn(key, message string, args ...any) {
	q.Log(slog.LevelWarn, key, message, args...)
}
