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

// unlimited as a count of failures: until heal.
const unlimited = -1

// faults is what the disk is told to do wrong, and what happened to the operations.
type faults struct {
	crashed chan struct{} // closed by the crash

	mu       sync.Mutex
	gate     chan struct{} // closed when a stalled disk continues; nil: it does not stall
	delay    [ops]time.Duration
	fail     [ops]int
	full     bool
	counters Counters
}

// Counters counts operations.
type Counters struct {
	Reads, Writes, Fsyncs int
	Failed                int // told EIO by a fault, or ENOSPC
	Hanging               int // at present
}

func newFaults() *faults { return &faults{crashed: make(chan struct{})} }

// admit lets an operation wait as long as it has to, and says whether it may be done.
func (f *faults) admit(o op) syscall.Errno {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count(o)
	if o != opRead {
		f.waitForFault(f.delay[o])
	}
	select {
	case <-f.crashed:
		return syscall.EIO
	default:
	}
	if f.fail[o] == 0 {
		return 0
	}
	if f.fail[o] != unlimited {
		f.fail[o]--
	}
	f.counters.Failed++
	return syscall.EIO
}

func (f *faults) count(o op) {
	switch o {
	case opRead:
		f.counters.Reads++
	case opWrite:
		f.counters.Writes++
	case opFsync:
		f.counters.Fsyncs++
	}
}

// waitForFault waits at the gate, then for the delay; a crash ends both. mu is held, and free while it waits.
func (f *faults) waitForFault(delay time.Duration) {
	f.counters.Hanging++
	for f.gate != nil {
		gate := f.gate
		f.mu.Unlock()
		select {
		case <-gate:
		case <-f.crashed:
			f.mu.Lock()
			f.counters.Hanging--
			return
		}
		f.mu.Lock()
	}
	if delay > 0 {
		f.mu.Unlock()
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-f.crashed:
		}
		timer.Stop()
		f.mu.Lock()
	}
	f.counters.Hanging--
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
	f.openGate()
}

func (f *faults) openGate() {
	if f.gate != nil {
		close(f.gate)
		f.gate = nil
	}
}

func (f *faults) heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.openGate()
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
		times = unlimited
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

// refuseNoSpace counts a refusal for want of space.
func (f *faults) refuseNoSpace() syscall.Errno {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counters.Failed++
	return syscall.ENOSPC
}

func (f *faults) counts() Counters {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counters
}

// checkCrashed says whether the disk answers at all; only a crash keeps it from telling what it knows.
func (f *faults) checkCrashed() syscall.Errno {
	select {
	case <-f.crashed:
		return syscall.EIO
	default:
		return 0
	}
}
