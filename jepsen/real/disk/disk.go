package disk

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// LossyDisk is a mounted lossyfs. Its methods may be called from several goroutines.
type LossyDisk struct {
	name string
	dir  string

	mu       sync.Mutex // one command at a time
	program  *exec.Cmd  // nil: closed
	commands io.WriteCloser
	replies  *bufio.Scanner
}

// Op is what Fail is about.
type Op string

// The operations that can be made to fail. Writes are also all changes of names and lengths.
const (
	Reads  Op = "reads"
	Writes Op = "writes"
	Fsyncs Op = "fsyncs"
)

// KeepPolicy says what a crash leaves of what was not flushed.
type KeepPolicy string

// What a crash can leave.
const (
	KeepNothing KeepPolicy = "nothing"
	KeepSome    KeepPolicy = "some" // as the seed says
	KeepAll     KeepPolicy = "all"
)

// CrashLoss is what a crash took, and what it could have taken.
type CrashLoss struct {
	Pages, KeptPages int // written or cut off, and not flushed
	Files            int // that lost pages or fell back in length
	Names, KeptNames int // changes of names
}

// Stats counts what the disk was asked for since it came up.
type Stats struct {
	Reads, Writes, Fsyncs int
	Failed                int // told EIO or ENOSPC by a fault
	Hanging               int // at present
	Pages, Names          int // that a crash would take at most
}

// exitTimeout bounds how long a lossyfs whose input has ended may take to end, on a busy machine too.
const exitTimeout = time.Minute

// AddLossy mounts a disk. What it holds is kept on a small one, or, without, in a folder beside it.
func (s *Pool) AddLossy(name string, on *SmallDisk) (*LossyDisk, error) {
	dir, err := s.mountPoint(name)
	if err != nil {
		return nil, err
	}
	backing := filepath.Join(s.dir, name+".backing")
	if on != nil {
		backing = on.Dir()
	}
	if err := os.MkdirAll(backing, 0o755); err != nil {
		return nil, err
	}
	d := &LossyDisk{name: name, dir: dir}
	d.program = exec.Command(s.program, "-backing", backing, "-mount", dir, "-name", s.run)
	d.program.Stderr = os.Stderr
	// A Ctrl-C is for the run, which still needs its disks to end cleanly.
	d.program.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if d.commands, err = d.program.StdinPipe(); err != nil {
		return nil, err
	}
	answers, err := d.program.StdoutPipe()
	if err != nil {
		return nil, err
	}
	d.replies = bufio.NewScanner(answers)
	if err := d.program.Start(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.disks = append(s.disks, d)
	s.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	return d, d.readReply("mount", nil)
}

// Dir is where the disk is mounted.
func (d *LossyDisk) Dir() string { return d.dir }

// Stall lets all that changes the disk hang, until Resume or Heal.
func (d *LossyDisk) Stall() error { return d.command(nil, "stall") }

// Resume lets what hangs land.
func (d *LossyDisk) Resume() error { return d.command(nil, "resume") }

// Delay makes each write and each fsync take so much longer.
func (d *LossyDisk) Delay(write, fsync time.Duration) error {
	return d.command(nil, "delay %v %v", write, fsync)
}

// Fail answers so many operations with EIO; 0: all until Heal. A flush that failed has dropped its pages.
func (d *LossyDisk) Fail(op Op, times int) error { return d.command(nil, "fail %s %d", op, times) }

// SetFull refuses whatever needs a new block, or no longer does.
func (d *LossyDisk) SetFull(full bool) error {
	if full {
		return d.command(nil, "full")
	}
	return d.command(nil, "roomy")
}

// Heal ends all faults but a crash.
func (d *LossyDisk) Heal() error { return d.command(nil, "heal") }

// Crash takes what was not flushed, but for what keep leaves. From then on everything fails with EIO until Up.
func (d *LossyDisk) Crash(keep KeepPolicy, seed uint64) (lost CrashLoss, err error) {
	return lost, d.command(&lost, "crash %s %d", keep, seed)
}

// Remount mounts a crashed disk anew, without faults.
func (d *LossyDisk) Remount() error { return d.command(nil, "up") }

// Stats asks for the counts.
func (d *LossyDisk) Stats() (stats Stats, err error) {
	return stats, d.command(&stats, "stats")
}

// command gives a command and waits for its answer.
func (d *LossyDisk) command(into any, format string, args ...any) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	order := fmt.Sprintf(format, args...)
	if d.program == nil {
		return fmt.Errorf("disk %s: %s: it is closed", d.name, order)
	}
	if _, err := fmt.Fprintln(d.commands, order); err != nil {
		return fmt.Errorf("disk %s: %s: lossyfs does not listen: %w", d.name, order, err)
	}
	return d.readReply(order, into)
}

// readReply takes the answer to an order. The caller has the mutex.
func (d *LossyDisk) readReply(order string, into any) error {
	if !d.replies.Scan() {
		return fmt.Errorf("disk %s: %s: lossyfs has ended without an answer: %w", d.name, order, d.replies.Err())
	}
	said := d.replies.Text()
	answer, ok := strings.CutPrefix(said, "ok")
	if !ok {
		return fmt.Errorf("disk %s: %s: %s", d.name, order, strings.TrimPrefix(said, "error "))
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal([]byte(answer), into)
}

// Close unmounts the disk. Whoever hangs is told EIO. A second Close does nothing.
func (d *LossyDisk) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.program == nil {
		return nil
	}
	defer func() { d.program = nil }()
	ending := time.AfterFunc(exitTimeout, func() { _ = d.program.Process.Kill() })
	defer ending.Stop()
	_ = d.commands.Close() // the end of its input; it can't fail in a way that Wait does not tell
	if err := d.program.Wait(); err != nil {
		return fmt.Errorf("disk %s: lossyfs ended: %w", d.name, err)
	}
	return nil
}
