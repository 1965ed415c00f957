package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/rpc"
	"os"
	"path/filepath"
	"sync"
	"time"

	"zamok/jepsen/check"
	"zamok/jepsen/workload"
)

// recorder is a process's part of the history: a file of lines, each written at once, so that what
// was recorded outlives a kill.
type recorder struct {
	workload.Recorder

	mu    sync.Mutex // guards what follows
	file  *os.File
	lines *json.Encoder
	err   error // the first; nothing is written after it
}

func newRecorder(path string) (*recorder, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	r := &recorder{file: file, lines: json.NewEncoder(file)}
	r.HistoryTime, r.Put = monotonicNow, r.put
	return r, nil
}

func (r *recorder) put(line check.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = r.lines.Encode(line)
	}
}

func (r *recorder) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := errors.Join(r.err, r.file.Close()); err != nil {
		return fmt.Errorf("the history is not complete: %w", err)
	}
	return nil
}

const (
	stallPollInterval = 20 * time.Millisecond
	// stallMin is below what clients subtract from their deadlines, so that no shorter stall does
	// harm.
	stallMin = 120 * time.Millisecond
)

// recordStalls records when this process stood although no fault had paused it, as on an overloaded
// machine. The holds of its clients are excused then, as in a pause: they see a loss when the
// process runs again.
func (r *recorder) recordStalls(ctx context.Context, clients []string) {
	for last := monotonicNow(); workload.Sleep(ctx, stallPollInterval); {
		at := monotonicNow()
		if at-last > stallMin {
			fmt.Fprintf(os.Stderr, "this process did not run for %v\n", at-last)
			r.excuse(clients, last, at)
		}
		last = at
	}
}

// excuse records that clients did not run, so that their holds are excused meanwhile.
func (r *recorder) excuse(clients []string, from, to time.Duration) {
	for _, client := range clients {
		r.put(
			check.Record{Fault: &check.Fault{Target: client, From: from, To: to,
				ExcusesClient: true}})
	}
}

// countSucceeded counts the calls that have succeeded so far, in the parts of a history.
func countSucceeded(parts string) (n int) {
	names, _ := filepath.Glob(filepath.Join(parts, "*.jsonl")) // its error is about the pattern
	for _, name := range names {
		text, _ := os.ReadFile(name) // a file that can't be read now is counted later
		n += bytes.Count(text, []byte(`"outcome":"ok"`))
	}
	return n
}

// serveResource serves the resource that the locks guard, by net/rpc, until the listener is closed.
// It is in the main process of the run, which is never paused.
func serveResource(address string, r *recorder) (net.Listener, error) {
	server := rpc.NewServer()
	if err := server.RegisterName("Resource", workload.NewResource(&r.Recorder)); err != nil {
		return nil, err
	}
	in, err := net.Listen("tcp", address)
	if err == nil {
		go func() { _ = http.Serve(in, server) }() // until the listener is closed
	}
	return in, err
}
