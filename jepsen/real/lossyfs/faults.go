package main

import (
	"sync"
	"syscall"
	"time"
)

// op is a kind of operation that changes the disk.
type op int

const (
	opWrite op = iota // also truncate, allocate, and every change of names
	opFsync
	ops
)

// faults is what the disk does wrong at present.
type faults struct {
	crashed chan struct{} // closed by the crash

	mu         sync.Mutex
	gate       chan struct{} // closed when a stalled disk continues; nil: it does not stall
	fsyncDelay time.Duration
	failNext   [ops]bool
	hanging    int // operations
}

// admit lets an operation wait as long as it has to, and decides whether it may be done.
func (f *faults) admit(o op) syscall.Errno {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hanging++
	for f.gate != nil && f.checkCrashed() == 0 {
		f.wait(f.gate)
	}
	if o == opFsync && f.fsyncDelay > 0 {
		delay := make(chan struct{})
		timer := time.AfterFunc(f.fsyncDelay, func() { close(delay) })
		f.wait(delay)
		timer.Stop()
	}
	f.hanging--
	failed := f.failNext[o]
	f.failNext[o] = false
	if failed || f.checkCrashed() != 0 {
		return syscall.EIO
	}
	return 0
}

// wait waits until a channel is closed, or for a crash. mu is held, and free meanwhile.
func (f *faults) wait(closed <-chan struct{}) {
	f.mu.Unlock()
	defer f.mu.Lock()
	select {
	case <-closed:
	case <-f.crashed:
	}
}

func (f *faults) stall() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gate == nil {
		f.gate = make(chan struct{})
	}
}

func (f *faults) heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gate != nil {
		close(f.gate)
	}
	f.gate, f.fsyncDelay, f.failNext = nil, 0, [ops]bool{}
}

func (f *faults) setDelay(fsync time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fsyncDelay = fsync
}

func (f *faults) setFail(o op) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failNext[o] = true
}

func (f *faults) countHanging() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hanging
}

// checkCrashed is EIO after a crash. Reads are kept from nothing else.
func (f *faults) checkCrashed() syscall.Errno {
	select {
	case <-f.crashed:
		return syscall.EIO
	default:
		return 0
	}
}
