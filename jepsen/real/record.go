package main

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

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
