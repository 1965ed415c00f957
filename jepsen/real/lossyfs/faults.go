package main

import (
	"sync"
	"syscall"
	"time"
)

// op is a kind of operation that a fault is about.
type op int

const (
	opRead  op = iota
	opWrite    // also truncate, allocate, and every change of names
	opFsync
	ops
)

// forEver as a count of failures: until heal.
const forEver = -1

// faults is what the disk is told to do wrong, and what happened to the operations.
type faults struct {
	dead chan struct{} // closed by the crash

	mu    sync.Mutex
	gate  chan struct{} // closed when a stalled disk goes on; nil: it does not stall
	delay [ops]time.Duration
	fail  [ops]int
	full  bool
	seen  Seen
}

// Seen counts operations.
type Seen struct {
	Reads, Writes, Fsyncs int
	Failed                int // told EIO by a fault, or ENOSPC
	Hanging               int // at present
}

func newFaults() *faults { return &faults{dead: make(chan struct{})} }

// pass lets an operation wait as long as it has to, and says whether it may be done.
func (f *faults) pass(o op) syscall.Errno {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count(o)
	if o != opRead {
		f.hang(f.delay[o])
	}
	select {
	case <-f.dead:
		return syscall.EIO
	default:
	}
	if f.fail[o] == 0 {
		return 0
	}
	if f.fail[o] != forEver {
		f.fail[o]--
	}
	f.seen.Failed++
	return syscall.EIO
}

func (f *faults) count(o op) {
	switch o {
	case opRead:
		f.seen.Reads++
	case opWrite:
		f.seen.Writes++
	case opFsync:
		f.seen.Fsyncs++
	}
}

// hang waits at the gate, then for the delay; a crash ends both. mu is held, and free while it waits.
func (f *faults) hang(delay time.Duration) {
	f.seen.Hanging++
	for f.gate != nil {
		gate := f.gate
		f.mu.Unlock()
		select {
		case <-gate:
		case <-f.dead:
			f.mu.Lock()
			f.seen.Hanging--
			return
		}
		f.mu.Lock()
	}
	if delay > 0 {
		f.mu.Unlock()
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-f.dead:
		}
		timer.Stop()
		f.mu.Lock()
	}
	f.seen.Hanging--
}

func (f *faults) stall() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gate == nil {
		f.gate = make(chan struct{})
	}
}

func (f *faults) resume() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open()
}

func (f *faults) open() {
	if f.gate != nil {
		close(f.gate)
		f.gate = nil
	}
}

func (f *faults) heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open()
	f.delay, f.fail, f.full = [ops]time.Duration{}, [ops]int{}, false
}

func (f *faults) setDelay(write, fsync time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delay[opWrite], f.delay[opFsync] = write, fsync
}

func (f *faults) setFail(o op, times int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if times == 0 {
		times = forEver
	}
	f.fail[o] = times
}

func (f *faults) setFull(full bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.full = full
}

func (f *faults) isFull() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.full
}

// refused counts a refusal for want of space.
func (f *faults) refused() syscall.Errno {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen.Failed++
	return syscall.ENOSPC
}

func (f *faults) now() Seen {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen
}

// look says whether the disk answers at all; only a crash keeps it from telling what it knows.
func (f *faults) look() syscall.Errno {
	select {
	case <-f.dead:
		return syscall.EIO
	default:
		return 0
	}
}
