package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
	"unicode/utf8"
)

// Event is one line. Record sets Node.
type Event struct {
	Time    time.Time         `json:"time"`
	Node    string            `json:"node"`
	Who     string            `json:"who"`           // the caller's identity
	From    string            `json:"from"`          // its address
	Via     string            `json:"via,omitempty"` // the node that relayed the call
	Call    string            `json:"call"`          // as in zamok.proto
	On      map[string]string `json:"on,omitempty"`  // what it is about
	Outcome string            `json:"outcome"`       // done, not done, unknown
	Code    string            `json:"code,omitempty"`
	Message string            `json:"message,omitempty"`
}

// Log writes events. It is safe for concurrent use. A nil Log records nothing.
type Log struct {
	node   string
	failed func(error)

	mu  sync.Mutex // guards out
	out io.Writer
}

// New makes a log. failed is called with the error of each line that could not be written; the call is answered nevertheless.
func New(out io.Writer, node string, failed func(error)) *Log {
	return &Log{node: node, failed: failed, out: out}
}

// Record writes a line.
func (l *Log) Record(e Event) {
	if l == nil {
		return
	}
	e.Node, e.Time = l.node, e.Time.UTC()
	line, err := json.Marshal(e)
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		_, err = l.out.Write(append(ascii(line), '\n')) // one write, so that lines do not mix
	}
	if err != nil {
		l.failed(fmt.Errorf("a line of the audit log was not written: %w", err))
	}
}

// ascii escapes all characters of a JSON document that are not ASCII; they occur in strings only.
func ascii(line []byte) []byte {
	var out bytes.Buffer
	for len(line) > 0 {
		r, size := utf8.DecodeRune(line)
		switch {
		case r < 0x7f:
			out.WriteByte(line[0])
		case r > 0xffff:
			r -= 0x10000
			fmt.Fprintf(&out, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
		line = line[size:]
	}
	return out.Bytes()
}

// File appends to a file that can be rotated.
type File struct {
	path string

	mu   sync.Mutex // guards file
	file *os.File
}

// Open opens a file, and creates it if it is missing, readable by its owner only.
func Open(path string) (*File, error) {
	f := &File{path: path}
	return f, f.Reopen()
}

// Reopen opens the path again after a rotation. After an error the old file stays in use.
func (f *File) Reopen() error {
	file, err := os.OpenFile(f.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("the audit log can't be opened: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file != nil {
		_ = f.file.Close() // nothing is buffered
	}
	f.file = file
	return nil
}

// Write implements io.Writer.
func (f *File) Write(line []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.file.Write(line)
}

// Close closes the file.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.file.Close()
}
