package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// reloadEvery is the shortest time between two checks whether files have changed. They are checked
// when their value is used, and by a server also without that (reloadSet.keepCurrent).
const reloadEvery = time.Second

// reloadSet is the set of files that a server reloads.
type reloadSet struct {
	reread []func() // on HUP
	usable map[string]func() bool
}

// watch adds files to a set.
func watch[T any](all *reloadSet, r *reloaded[T]) {
	if all.usable == nil {
		all.usable = make(map[string]func() bool)
	}
	all.reread, all.usable[r.what] = append(all.reread, r.now), r.usable
}

// files checks the files, and reports which ones are valid as they are now.
func (all *reloadSet) files() map[string]bool {
	now := make(map[string]bool)
	for what, usable := range all.usable {
		now[what] = usable()
	}
	return now
}

// keepCurrent checks the files for changes until it is stopped, and reads all of them at each HUP.
// An idle server uses no value: without the checks it would miss a valid version that an invalid
// one follows, and an invalid one until the next call.
func (all *reloadSet) keepCurrent(hangups <-chan os.Signal) (stop func()) {
	stopped, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(reloadEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				all.files()
			case <-hangups:
				for _, read := range all.reread {
					read()
				}
			case <-stopped:
				return
			}
		}
	}()
	return func() {
		close(stopped)
		<-done
	}
}

// reloaded is a value that is parsed from files, and again when one of them has changed. If they
// can't be read or parsed, the previous value stays in force.
type reloaded[T any] struct {
	what  string // the content, for the log
	paths []string
	parse func(texts [][]byte) (T, error)
	log   *slog.Logger

	current atomic.Pointer[T]
	broken  atomic.Bool // the files are invalid, so current is an earlier version

	mu      sync.Mutex // guards what follows; held while files are read
	checked time.Time
	seen    []os.FileInfo
}

// reload reads files for the first time.
func reload[T any](log *slog.Logger, what string, parse func(texts [][]byte) (T, error),
	paths ...string) (*reloaded[T], error) {
	r := &reloaded[T]{what: what, paths: paths, parse: parse, log: log}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r, r.read()
}

// get returns the value in force. Of concurrent callers one checks the files, and the others don't
// wait for the disk.
func (r *reloaded[T]) get() T {
	if r.mu.TryLock() {
		if now := time.Now(); now.Sub(r.checked) >= reloadEvery {
			r.checked = now
			if r.changed() {
				r.reload()
			}
		}
		r.mu.Unlock()
	}
	return *r.current.Load()
}

// now reads the files even if they seem unchanged.
func (r *reloaded[T]) now() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reload()
}

// usable reports whether the files are valid, so that their value is in force.
func (r *reloaded[T]) usable() bool {
	r.get() // check the files, even if nothing uses their value
	return !r.broken.Load()
}

// reload reads the files and logs the result. The caller holds the lock.
func (r *reloaded[T]) reload() {
	if err := r.read(); err != nil {
		r.broken.Store(true)
		r.log.Error("changed files are invalid: the previous version stays in force until they "+
			"are fixed", "what", r.what, "error", err)
		return
	}
	r.broken.Store(false)
	r.log.Info("files reloaded", "what", r.what, "files", r.paths)
}

// changed reports whether a file differs from the one that was read. The caller holds the lock.
func (r *reloaded[T]) changed() bool {
	seen := r.stat()
	return !slices.EqualFunc(seen, r.seen, func(a, b os.FileInfo) bool {
		if a == nil || b == nil {
			return a == nil && b == nil
		}
		return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
	})
}

func (r *reloaded[T]) stat() (seen []os.FileInfo) {
	for _, path := range r.paths {
		info, err := os.Stat(path)
		if err != nil {
			info = nil
		}
		seen = append(seen, info)
	}
	return seen
}

// read reads the files. The caller holds the lock.
func (r *reloaded[T]) read() error {
	seen := r.stat() // before the content, so that a change meanwhile is found by the next check
	var texts [][]byte
	var failed []error
	for _, path := range r.paths {
		text, err := os.ReadFile(path)
		texts, failed = append(texts, text), append(failed, err)
	}
	r.seen = seen
	if err := errors.Join(failed...); err != nil {
		return err
	}
	value, err := r.parse(texts)
	if err != nil {
		return fmt.Errorf("%s: %w", strings.Join(r.paths, ", "), err)
	}
	r.current.Store(&value)
	return nil
}
