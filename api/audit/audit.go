package audit

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"zamok/api/aggregate"
	"zamok/api/visible"
)

// Event is one line. Record sets Node. A line with Omitted is the last of so many denials since
// then that have no other line.
type Event struct {
	Time time.Time `json:"time"`
	Node string    `json:"node"`
	Who  string    `json:"who"`            // the caller's identity
	From string    `json:"from,omitempty"` // its address; that of a grant is not known
	Via  string    `json:"via,omitempty"`  // the node that relayed the call
	// as in zamok.proto; or granted, released, lost
	Call    string            `json:"call"`
	On      map[string]string `json:"on,omitempty"` // what it is about
	Outcome string            `json:"outcome"`      // done, not done, unknown
	Code    string            `json:"code,omitempty"`
	Message string            `json:"message,omitempty"`
	Omitted int               `json:"omitted,omitempty"`
	Since   time.Time         `json:"since,omitzero"`
}

// Config configures a log.
type Config struct {
	Out  io.Writer // gets each line in one write
	Node string
	// Allow reports whether a denial of a principal may have a line of its own; Omitted is called
	// if not. Anonymous principals are those of callers without an identity.
	Allow   func(principal string, anonymous bool) bool
	Omitted func()
	// Failed is called with the error of each line that could not be written; the call is answered
	// nevertheless.
	Failed func(error)
}

const (
	// omittedEvery is how often denials without a line of their own are logged, in one line for
	// each of at most omittedMax principals and one for the others; likewise for anonymous
	// principals, so that they do not hide an identity.
	omittedEvery = 10 * time.Second
	omittedMax   = 50
	others       = "others"
	// anonymousPrefix begins the principals of callers without an identity.
	anonymousPrefix = "anonymous@"
)

// Log writes events. It is safe for concurrent use.
type Log struct {
	Config
	omitted, anonymous *aggregate.Counter[string, Event] // by principal

	mu sync.Mutex // held while a line is written
}

// New makes a log. Stop follows.
func New(config Config) *Log {
	l := &Log{Config: config}
	l.omitted = aggregate.New(omittedEvery, omittedMax, l.recordOmitted)
	l.anonymous = aggregate.New(omittedEvery, omittedMax, l.recordOmitted)
	return l
}

// RecordDenial writes a line, unless the principal has too many; then the denial is counted, and a
// line for all of them follows.
func (l *Log) RecordDenial(principal string, e Event) {
	anonymous := strings.HasPrefix(principal, anonymousPrefix)
	if l.Allow(principal, anonymous) {
		l.Record(e)
		return
	}
	l.Omitted()
	if anonymous {
		l.anonymous.Add(principal, anonymousPrefix+others, e)
		return
	}
	l.omitted.Add(principal, others, e)
}

func (l *Log) recordOmitted(principal string, c aggregate.Count[Event]) {
	e := c.Last
	e.Who, e.Omitted, e.Since = principal, c.N, c.First.Time.UTC()
	l.Record(e)
}

// Stop writes the lines that denials wait for. Denials without a line of their own are only counted
// after that.
func (l *Log) Stop() {
	l.omitted.Stop()
	l.anonymous.Stop()
}

// Record writes a line.
func (l *Log) Record(e Event) {
	e.Node, e.Time = l.Node, e.Time.UTC()
	line, err := json.Marshal(e)
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		// one write, so that lines do not mix
		_, err = l.Out.Write(append([]byte(visible.JSON(string(line))), '\n'))
	}
	if err != nil {
		l.Failed(fmt.Errorf("a line of the audit log was not written: %w", err))
	}
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
