package sim

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// traceMax is how many lines are kept at least: the last ones, all faults, and the lines with keptWords.
const traceMax = 3000

// Trace is what happened, with virtual time. It is printed when a test fails: scheduling can't be replayed, so a
// failure has to be understood from it.
type Trace struct {
	began time.Time

	mu      sync.Mutex
	lines   []traceLine
	dropped int
}

type traceLine struct {
	at     time.Duration
	source string
	text   string
	kept   bool // never dropped
}

func newTrace() *Trace { return &Trace{began: time.Now()} }

// Note adds a line.
func (t *Trace) Note(source, format string, args ...any) {
	t.add(source, fmt.Sprintf(format, args...), false)
}

// Fault adds a line about what was done to the cluster.
func (t *Trace) Fault(format string, args ...any) { t.add("FAULT", fmt.Sprintf(format, args...), true) }

func (t *Trace) add(source, text string, kept bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, traceLine{time.Since(t.began), source, text, kept})
	if len(t.lines) >= 2*traceMax {
		old := t.lines[:len(t.lines)-traceMax]
		left := slices.DeleteFunc(slices.Clone(old), func(l traceLine) bool { return !l.kept })
		t.dropped += len(old) - len(left)
		t.lines = append(left, t.lines[len(old):]...)
	}
}

// String prints the trace.
func (t *Trace) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "trace (%d lines dropped):\n", t.dropped)
	for _, l := range t.lines {
		fmt.Fprintf(&b, "%12.6fs %-6s %s\n", l.at.Seconds(), l.source, l.text)
	}
	return b.String()
}

// Has reports whether a line of this source, if it was not dropped, contains all these words.
func (t *Trace) Has(source string, words ...string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.lines, func(l traceLine) bool {
		missing := func(word string) bool { return !strings.Contains(l.text, word) }
		return l.source == source && !slices.ContainsFunc(words, missing)
	})
}

// logger is a node's logger, which writes into the trace, and calls each of watch with each line.
func (t *Trace) logger(source string, watch ...func(line string)) *slog.Logger {
	return slog.New(slog.NewTextHandler(traceWriter{t, source, watch}, &slog.HandlerOptions{
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.TimeKey {
				return slog.Attr{} // the trace has its own
			}
			return a
		},
	}))
}

type traceWriter struct {
	trace  *Trace
	source string
	watch  []func(line string)
}

func (w traceWriter) Write(line []byte) (int, error) {
	text := strings.TrimSuffix(string(line), "\n")
	w.trace.add(w.source, text, slices.ContainsFunc(keptWords, func(w string) bool { return strings.Contains(text, w) }))
	for _, call := range w.watch {
		call(text)
	}
	return len(line), nil
}

// keptWords are in the few messages without which a run can't be understood.
var keptWords = []string{"ALARM", "leading", "Installed remote snapshot", "two processes", "clone detected"}
