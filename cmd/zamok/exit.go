package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"zamok/api/visible"
	"zamok/client"
	"zamok/raftnode"
)

// The exit codes. They are in a range that few commands use, since a command under a lock has its
// own; those from 126 on have the meaning that shells give them.
const (
	exitNotHeld = 1 // `zamok check`: not held
	// `zamok server`: this data directory was removed from its cluster
	exitRemoved              = 118
	exitTargetNotFound       = 119 // the given session, node, grant or file does not exist
	exitDenied               = 120 // denied by the access rules
	exitNotAcquired          = 121 // --try: the acquisition would have to wait
	exitWaitTimeout          = 122 // --wait: the wait timed out
	exitLost                 = 123 // the lock was lost, or about to be, and the command was ended
	exitUnavailable          = 124 // no node could do it in time: try again
	exitGeneral              = 125 // usage, configuration, and everything else
	exitCommandNotExecutable = 126 // the command was found, but can't be run
	exitCommandNotFound      = 127 // there is no such command
	// + n: signal n ended the command, or this program while it waited
	exitSignalBase = 128
)

// fatalExitCode is the exit code of a node that can't continue.
func fatalExitCode(err error) int {
	if errors.Is(err, raftnode.ErrRemoved) {
		return exitRemoved
	}
	return exitGeneral
}

// exitCodeForError is the exit code of an error that is no exitError.
func exitCodeForError(err error) int {
	switch {
	case errors.Is(err, client.ErrDenied):
		return exitDenied
	case errors.Is(err, client.ErrUnavailable):
		return exitUnavailable
	}
	return exitGeneral
}

// exitError is an error with an exit code. If err is nil there is nothing to print: the code is
// that of the child, or the answer was printed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usageError is an error in the arguments. The help to read is printed with it.
type usageError struct {
	command string // "zamok lock"
	err     error
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// signalError is the cause of a context that a signal ended.
type signalError struct{ signal syscall.Signal }

func (e *signalError) Error() string { return "ended by the signal: " + e.signal.String() }

// printError prints an error, and returns its exit code.
func (a *app) printError(err error) int {
	if err == nil {
		return 0
	}
	code := exitCodeForError(err)
	if e := (*exitError)(nil); errors.As(err, &e) {
		code = e.code
		if e.err == nil {
			return code
		}
	}
	if e := (*signalError)(nil); errors.As(err, &e) {
		return exitSignalBase + int(e.signal) // not printed: the sender of the signal knows
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		fmt.Fprintf(a.stderr, "zamok: %s\n", visible.Line(line))
	}
	if e := (*usageError)(nil); errors.As(err, &e) {
		fmt.Fprintf(a.stderr, "See `%s --help`.\n", e.command)
	}
	return code
}

// signalOr returns the signalError if a signal has ended the context of a call, otherwise the error
// of the call.
func signalOr(ctx context.Context, err error) error {
	if e := (*signalError)(nil); err != nil && errors.As(context.Cause(ctx), &e) {
		return e
	}
	return err
}
