package report

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"zamok/jepsen/check"
)

// Run is what a report tells of. Only History and Report are needed.
type Run struct {
	History *check.History
	Report  *check.Report
	Command string            // the whole command that repeats the run, with its seed
	Epochs  []Epoch           // each time a node became leader; none = guess them from what reads showed
	Probers []string          // clients whose calls tell of outages, each by itself; none = all together
	Logs    map[string]string // where the servers' logs are, by the names that they get in logs/
	Notes   []string          // what else is to be known: what was left out and why
	Limits  check.Limits      // as they were given to check.Check
}

// Epoch is one leadership.
type Epoch struct {
	Node string
	Term uint64        // 0 = not known
	From time.Duration // as in the history
	To   time.Duration // 0 = until the next one's From, or the end
}

const (
	visualizedMax = 3        // so many locks have porcupine's picture
	logBytesMax   = 32 << 20 // so many bytes of a log's end are kept
)

// Write writes a run's directory, and makes it if need be. Files that are there are written anew.
// After an error the directory is not whole.
func Write(dir string, run Run) (*Summary, error) {
	if err := os.MkdirAll(filepath.Join(dir, "logs"), 0o777); err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	d := newAnalysis(run)
	s := d.summary()
	files := dirWriter{dir: dir, summary: s}
	for _, name := range slices.Sorted(maps.Keys(run.Logs)) {
		files.copyLog(name, run.Logs[name])
	}
	files.writeFile("history.jsonl", "the history", run.History.Write)
	for i, lock := range d.locksToVisualize() {
		files.writeFile(fmt.Sprintf("order-%d-%s.html", i+1, safeFileName(lock)), fmt.Sprintf("an order of the calls of lock %q", lock),
			func(w io.Writer) error { return check.Visualize(run.History, lock, run.Limits, w) })
	}
	files.writeFile("timeline.html", "who held what when, and what was done", func(w io.Writer) error {
		page, err := d.page(s)
		return errors.Join(err, write(w, page))
	})
	files.writeFile("summary.json", "this, for programs", func(w io.Writer) error {
		text, err := json.MarshalIndent(s, "", "\t")
		return errors.Join(err, write(w, append(text, '\n')))
	})
	files.writeFile("summary.md", "this", func(w io.Writer) error { return write(w, []byte(s.String())) })
	if err := errors.Join(files.errs...); err != nil {
		return nil, fmt.Errorf("report: %s is not whole: %w", dir, err)
	}
	return s, nil
}

func write(w io.Writer, text []byte) error {
	_, err := w.Write(text)
	return err
}

// dirWriter writes the files of one directory. One that fails keeps no other from being written.
type dirWriter struct {
	dir     string
	summary *Summary
	errs    []error
}

// writeFile writes one file, and has the summary name it: so what lists the files is written last.
func (d *dirWriter) writeFile(name, description string, fill func(io.Writer) error) {
	if !strings.HasPrefix(name, "summary") {
		d.summary.Files = append(d.summary.Files, File{name, description})
	}
	file, err := os.Create(filepath.Join(d.dir, filepath.FromSlash(name)))
	if err == nil {
		err = errors.Join(fill(file), file.Close())
	}
	if err != nil {
		d.errs = append(d.errs, fmt.Errorf("%s: %w", name, err))
	}
}

// copyLog copies a log, of a very long one the end. One that lies in the directory already stays there.
func (d *dirWriter) copyLog(name, from string) {
	if inside, err := filepath.Rel(d.dir, from); err == nil && filepath.IsLocal(inside) {
		d.summary.Files = append(d.summary.Files, File{filepath.ToSlash(inside), "a log"})
		if _, err := os.Stat(from); err != nil {
			d.errs = append(d.errs, err)
		}
		return
	}
	d.writeFile("logs/"+safeFileName(name), "a log", func(w io.Writer) error {
		file, err := os.Open(from)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }() // it was only read
		info, err := file.Stat()
		if err != nil {
			return err
		}
		if over := info.Size() - logBytesMax; over > 0 {
			if _, err := file.Seek(over, io.SeekStart); err != nil {
				return err
			}
			if _, err := fmt.Fprintf(w, "… %d bytes before this are left out\n", over); err != nil {
				return err
			}
		}
		_, err = io.Copy(w, file)
		return err
	})
}

// safeFileName makes a file's name of anything.
func safeFileName(name string) string {
	const longest = 60
	safe := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '-', r == '.':
			return r
		}
		return '_'
	}, name)
	return cmp.Or(strings.TrimLeft(safe[:min(len(safe), longest)], "."), "_")
}

// locksToVisualize are the locks that a violation names, or else the busiest one.
func (d *analysis) locksToVisualize() []string {
	var names []string
	for _, m := range d.violations {
		if m.lock != "" && d.locks[m.lock] != nil && !slices.Contains(names, m.lock) && len(names) < visualizedMax {
			names = append(names, m.lock)
		}
	}
	if busiest := d.busiest(1); len(names) == 0 && len(busiest) > 0 {
		names = append(names, busiest[0].name)
	}
	return names
}

// page makes timeline.html, with as much in it as fits.
func (d *analysis) page(s *Summary) ([]byte, error) {
	for bars := barsMax; ; bars /= 2 {
		var page bytes.Buffer
		if err := render(&page, s, d.timeline(bars)); err != nil {
			return nil, err
		}
		if page.Len() <= pageMax {
			return page.Bytes(), nil
		}
		if bars == 0 {
			return nil, fmt.Errorf("it would have %d bytes, and %d are allowed", page.Len(), pageMax)
		}
	}
}
