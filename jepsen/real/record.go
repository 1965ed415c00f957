package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"zamok/jepsen/check"
)

// record is a process's part of the history: a file of lines, each written at once, so that what was
// recorded outlives a kill.
type record struct {
	next atomic.Uint64 // numbers the calls

	mu    sync.Mutex // guards what follows
	file  *os.File
	lines *json.Encoder
	err   error // the first; nothing is written after it
}

func newRecord(path string) (*record, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return &record{file: file, lines: json.NewEncoder(file)}, nil
}

func (r *record) put(line check.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = r.lines.Encode(line)
	}
}

func (r *record) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.file.Close(); r.err == nil {
		r.err = err
	}
	if r.err != nil {
		return fmt.Errorf("the history is not complete: %w", r.err)
	}
	return nil
}

// call takes down that something is called. A call that changes something is written at once: if this
// process is killed, it may have been done all the same.
func (r *record) call(op check.Op) *check.Op {
	op.ID, op.Call, op.Outcome = r.next.Add(1), now(), check.Unknown
	switch op.Kind {
	case check.OpGet, check.OpCheck, check.OpNow:
	default:
		r.put(check.Record{Op: &op})
	}
	return &op
}

// done takes down what came back.
func (r *record) done(op *check.Op, change func(*check.Op)) {
	op.Return = now()
	change(op)
	r.put(check.Record{Op: op})
}

const (
	stallLook = 20 * time.Millisecond
	// stallLeast is below what clients take off their deadlines, so that no shorter stall harms anybody.
	stallLeast = 120 * time.Millisecond
)

// stalls takes down when this process did not run though no fault had paused it, as on a machine that has too much
// to do. Of what its clients believe then nothing is promised, as in a pause: it sees a loss when it runs again.
func (r *record) stalls(ctx context.Context, clients []string) {
	for last := now(); pause(ctx, stallLook); {
		at := now()
		if at-last > stallLeast {
			fmt.Fprintf(os.Stderr, "this process did not run for %v\n", at-last)
			for _, client := range clients {
				r.put(check.Record{Fault: &check.Fault{Target: client, From: last, To: at, Voids: true}})
			}
		}
		last = at
	}
}

// tally counts the calls that succeeded, in the parts of the history as they are written.
type tally struct {
	read map[string]int64 // of each file, in bytes
	sum  int
}

// succeeded is how many there are so far, in a directory of parts.
func (t *tally) succeeded(parts string) int {
	names, _ := filepath.Glob(filepath.Join(parts, "*.jsonl")) // its error is about the pattern
	if t.read == nil {
		t.read = map[string]int64{}
	}
	for _, name := range names {
		if file, err := os.Open(name); err == nil { // what can't be read now is counted later
			t.read[name] += t.count(io.NewSectionReader(file, t.read[name], 1<<62))
			file.Close()
		}
	}
	return t.sum
}

// count counts in whole lines, and returns how many bytes these have.
func (t *tally) count(from io.Reader) (whole int64) {
	buffer, kept := make([]byte, 1<<20), 0
	for {
		n, err := from.Read(buffer[kept:])
		text := buffer[:kept+n]
		end := bytes.LastIndexByte(text, '\n') + 1
		t.sum += bytes.Count(text[:end], []byte(`"outcome":"ok"`))
		whole += int64(end)
		if kept = copy(buffer, text[end:]); err != nil || kept == len(buffer) {
			return whole
		}
	}
}
