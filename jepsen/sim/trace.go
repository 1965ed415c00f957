package sim

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// traceMax is how many lines are kept: the last ones, all faults, and what few messages tell most.
const traceMax = 3000

// Trace is what happened, with virtual time. It is printed when a test fails: scheduling can't be
// replayed, so the trace is what there is to understand a failure by.
type Trace struct {
	began time.Time

	mu      sync.Mutex
	lines   []traceLine
	dropped int // how many lines were forgotten
}

type traceLine struct {
	at     time.Duration
	source string
	text   string
	kept   bool // not forgotten
}

func newTrace() *Trace { return &Trace{began: time.Now()} }

// Note takes down what somebody did or said.
func (t *Trace) Note(who, format string, args ...any) {
	t.add(who, fmt.Sprintf(format, args...), false)
}

// Fault takes down what was done to the cluster.
func (t *Trace) Fault(format string, args ...any) { t.add("FAULT", fmt.Sprintf(format, args...), true) }

func (t *Trace) add(who, text string, kept bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, traceLine{time.Since(t.began), who, text, kept})
	if len(t.lines) >= 2*traceMax {
		old := t.lines[:len(t.lines)-traceMax]
		var left []traceLine
		for _, l := range old {
			if l.kept {
				left = append(left, l)
			}
		}
		t.dropped += len(old) - len(left)
		t.lines = append(left, t.lines[len(old):]...)
	}
}

// String prints the trace.
func (t *Trace) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "trace (%d lines forgotten):\n", t.dropped)
	for _, l := range t.lines {
		fmt.Fprintf(&b, "%12.6fs %-6s %s\n", l.at.Seconds(), l.source, l.text)
	}
	return b.String()
}

// Has reports whether a line of this author, if it is still known, has all these words in it.
func (t *Trace) Has(who string, words ...string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.lines {
		if l.source == who && hasAll(l.text, words) {
			return true
		}
	}
	return false
}

func hasAll(text string, words []string) bool {
	for _, w := range words {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}

// logger is a node's logger.
func (t *Trace) logger(who string) *slog.Logger { return slog.New(&traceHandler{trace: t, who: who}) }

// traceHandler writes what is logged into the trace.
type traceHandler struct {
	trace *Trace
	who   string
	attrs []slog.Attr
}

func (h *traceHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo
}

func (h *traceHandler) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%-5s %s", r.Level, r.Message)
	for _, a := range h.attrs {
		fmt.Fprintf(&b, " %s=%v", a.Key, a.Value)
	}
	r.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(&b, " %s=%v", a.Key, a.Value)
		return true
	})
	h.trace.add(h.who, b.String(), isKept(r.Message))
	return nil
}

// isKept reports whether a message is one of the few that tell the story of a run.
func isKept(message string) bool {
	for _, words := range []string{"ALARM", "leading", "Installed remote snapshot", "two processes", "clone detected"} {
		if strings.Contains(message, words) {
			return true
		}
	}
	return false
}

func (h *traceHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &traceHandler{h.trace, h.who, append(append([]slog.Attr(nil), h.attrs...), attrs...)}
}

func (h *traceHandler) WithGroup(string) slog.Handler { return h }
