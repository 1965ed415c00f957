package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// testResult is the outcome of one run of go test.
type testResult struct {
	started  map[string]bool          // tests that began
	took     map[string]time.Duration // of tests that ended
	failed   []string                 // tests that failed, the first one first
	passed   bool                     // the package as a whole passed
	compiled bool
	timedOut bool
	output   []byte
}

// firstFailure names what failed first: a test, the time limit, or the process if it ended during a
// test.
func (o testResult) firstFailure() string {
	switch {
	case len(o.failed) > 0:
		return o.failed[0]
	case o.timedOut:
		return "the time limit"
	}
	return "the end of the process"
}

// event has the fields of test2json's events that are used here.
type event struct {
	Action      string
	Test        string
	Output      string
	Elapsed     float64 // seconds
	FailedBuild string
}

// goTest runs tests of one package, with the files of overlay instead of those of the tree. After
// an error nothing is known about the tests.
func (s suite) goTest(ctx context.Context, pkg, pattern, overlay string,
	limit time.Duration) (testResult, error) {
	args := []string{
		"test", "-json", "-count=1", "-short", "-failfast",
		// Compiling is most of the time, and no debugger needs the tables.
		"-vet=off", "-gcflags=-dwarf=0", "-ldflags=-s -w",
		"-timeout", limit.String(), "-run", pattern,
	}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	args = append(args, pkg)
	if s.usesRapid(pkg) {
		// A failure of a mutant must not be kept as a regression test.
		args = append(args, "-rapid.nofailfile")
	}
	// go test ends the tests at the limit. The rest is for compiling, also on a busy machine.
	ctx, cancel := context.WithTimeout(ctx, limit+10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = s.root
	// so that go ends its children
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.Output()
	if ctx.Err() != nil {
		return testResult{}, fmt.Errorf("go test %s was cut short: %w", pkg, ctx.Err())
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return testResult{}, err
	}
	if len(stdout) == 0 {
		return testResult{}, fmt.Errorf("go test %s: %s", pkg, bytes.TrimSpace(stderr.Bytes()))
	}
	o := readEvents(stdout)
	o.output = append(o.output, stderr.Bytes()...)
	return o, nil
}

func readEvents(stdout []byte) testResult {
	o := testResult{started: map[string]bool{}, took: map[string]time.Duration{}, compiled: true}
	lines := bufio.NewScanner(bytes.NewReader(stdout))
	lines.Buffer(nil, len(stdout)+1)
	for lines.Scan() {
		var e event
		// output of a process that is not the test's
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			o.output = append(append(o.output, lines.Bytes()...), '\n')
			continue
		}
		o.output = append(o.output, e.Output...)
		if e.Elapsed > 0 {
			o.took[e.Test] = time.Duration(e.Elapsed * float64(time.Second))
		}
		switch {
		case e.Action == "build-fail" || e.FailedBuild != "":
			o.compiled = false
		case e.Action == "run":
			o.started[e.Test] = true
		case e.Action == "fail" && e.Test != "":
			o.failed = append(o.failed, e.Test)
		case e.Action == "pass" && e.Test == "":
			o.passed = true
		}
		o.timedOut = o.timedOut || strings.HasPrefix(e.Output, "panic: test timed out")
	}
	return o
}

// usesRapid reports whether a test of the package imports rapid, and so accepts its flags.
func (s suite) usesRapid(pkg string) bool {
	files, _ := filepath.Glob(filepath.Join(s.root, pkg, "*_test.go"))
	return slices.ContainsFunc(files, func(name string) bool {
		text, err := os.ReadFile(name)
		return err == nil && bytes.Contains(text, []byte(`"pgregory.net/rapid"`))
	})
}

// writeOverlay writes the mutated files and the overlay into a folder, and returns the overlay's
// path.
func (s suite) writeOverlay(m mutant, folder string) (string, error) {
	replace := map[string]string{}
	for name, text := range m.mutated {
		mutatedFile := filepath.Join(folder, strings.ReplaceAll(name, "/", "__"))
		if err := os.WriteFile(mutatedFile, text, 0o644); err != nil {
			return "", err
		}
		replace[filepath.Join(s.root, filepath.FromSlash(name))] = mutatedFile
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(folder, "overlay.json")
	return overlay, os.WriteFile(overlay, text, 0o644)
}
