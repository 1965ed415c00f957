package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"zamok/client"
	"zamok/raftnode"
	"zamok/session/visible"
)

// The exit codes of every verb. A command run under a lock has its own codes besides; these lie
// where commands seldom are, and 126 and up mean what they mean to a shell.
const (
	exitNotHeld              = 1   // `zamok check`: not held
	exitRemoved              = 118 // `zamok server`: this data directory was removed from its cluster
	exitTargetNotFound       = 119 // what was named is not there: a session, a node, a grant to release
	exitDenied               = 120 // refused by the access rules
	exitNotAcquired          = 121 // --try: it would have to wait
	exitWaitTimeout          = 122 // --wait: the time was over
	exitLost                 = 123 // the lock was lost, or nearly, and the command was ended
	exitUnavailable          = 124 // no node could do it in time: try again
	exitGeneral              = 125 // ours: usage, configuration, and what fits nothing else
	exitCommandNotExecutable = 126 // the command was found and can't be run
	exitCommandNotFound      = 127 // there is no such command
	exitSignalBase           = 128 // + n: signal n ended the command, or this program while it waited
)

// fatalExitCode is the exit code of a node that ends itself.
func fatalExitCode(err error) int {
	if errors.Is(err, raftnode.ErrRemoved) {
		return exitRemoved
	}
	return exitGeneral
}

// exitCodeForError is the exit code of an error that does not know its own.
func exitCodeForError(err error) int {
	switch {
	case errors.Is(err, client.ErrDenied):
		return exitDenied
	case errors.Is(err, client.ErrUnavailable):
		return exitUnavailable
	}
	return exitGeneral
}

// exitError is an error that knows its exit code. Without err there is nothing to print: the code is
// the child's own, or the answer was printed.
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

// usageError is a mistake in the arguments; its report names the help to read.
type usageError struct {
	command string // "zamok lock"
	err     error
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// signalError is the cause of a context that a signal ended.
type signalError struct{ signal syscall.Signal }

func (e *signalError) Error() string { return "ended by the signal: " + e.signal.String() }

// printError prints an error as a person needs it, and returns its exit code.
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
		return exitSignalBase + int(e.signal) // the sender knows
	}
	text := strings.TrimPrefix(err.Error(), "zamok: ") // the client's have it already
	for line := range strings.SplitSeq(text, "\n") {
		fmt.Fprintf(a.stderr, "zamok: %s\n", visible.Line(line))
	}
	if e := (*usageError)(nil); errors.As(err, &e) {
		fmt.Fprintf(a.stderr, "See `%s --help`.\n", e.command)
	}
	return code
}

// signalOr is the error of a call whose context may have been ended by a signal: then that is what
// happened, and the call's own error is only how it ended.
func signalOr(ctx context.Context, err error) error {
	if e := (*signalError)(nil); err != nil && errors.As(context.Cause(ctx), &e) {
		return e
	}
	return err
}
