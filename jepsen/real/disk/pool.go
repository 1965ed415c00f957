package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// ErrUnsupported is the error of a machine on which disks can't be made to fail: no root, no /dev/fuse, no
// mounting, no Go command. A run without them notes it in its report.
var ErrUnsupported = errors.New("disks can't be made to fail here")

// Pool has all disks of a run.
type Pool struct {
	dir     string
	program string // lossyfs

	mu     sync.Mutex  // guards what follows
	mounts []io.Closer // in order: a lossy disk after the small one that it lies on
}

// Open builds lossyfs. dir is the pool's own. The process must have called Isolate.
func Open(ctx context.Context, dir string) (*Pool, error) {
	if os.Getenv(isolatedVariable) == "" {
		return nil, fmt.Errorf("%w: there is no mount namespace for them", ErrUnsupported)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	s := &Pool{dir: dir, program: filepath.Join(dir, "lossyfs")}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if err := s.probe(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	if err := s.build(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// probe finds out whether root may here what root may: in a container it often may not.
func (s *Pool) probe() error {
	fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer fuse.Close()
	dir, err := s.mountPoint("probe")
	if err != nil {
		return err
	}
	small := &SmallDisk{dir: dir, bytes: 1 << 20}
	if err := small.mount(0, small.bytes); err != nil {
		return err
	}
	return errors.Join(small.Close(), os.Remove(dir))
}

// build builds lossyfs from the checkout that the working directory is in.
func (s *Pool) build(ctx context.Context) error {
	if _, err := exec.LookPath("go"); err != nil {
		return fmt.Errorf("%w: lossyfs is built with the go command: %w", ErrUnsupported, err)
	}
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fmt.Errorf("lossyfs was not built, because the module is not found: %w", err)
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", s.program, ".")
	build.Dir = filepath.Join(strings.TrimSpace(string(root)), "jepsen", "real", "lossyfs")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("lossyfs was not built: %w: %s", err, said)
	}
	return nil
}

// mountPoint makes the folder on which a disk is mounted.
func (s *Pool) mountPoint(name string) (string, error) {
	dir := filepath.Join(s.dir, name)
	return dir, os.MkdirAll(dir, 0o755)
}

func (s *Pool) add(mount io.Closer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mounts = append(s.mounts, mount)
}

// Close takes off all mounts, and ends what serves them. Open files there are lost.
func (s *Pool) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, d := range slices.Backward(s.mounts) {
		errs = append(errs, d.Close())
	}
	s.mounts = nil
	return errors.Join(errs...)
}
