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
	program  *exec.Cmd
	commands io.WriteCloser
	replies  *bufio.Scanner
}

// Op is what FailNext is about.
type Op string

// The operations that can be made to fail. Writes are also all changes of names and lengths.
const (
	Writes Op = "writes"
	Fsyncs Op = "fsyncs"
)

// CrashLoss is what a crash took, and what it could have taken.
type CrashLoss struct {
	Pages, KeptPages int // written or cut off, and not flushed
	Files            int // that lost pages or fell back in length
	Names, KeptNames int // changes of names
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
	d.program = exec.Command(s.program, "-backing", backing, "-mount", dir)
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
	s.add(d)
	d.mu.Lock()
	defer d.mu.Unlock()
	return d, d.readReply("mount", nil)
}

// Dir is where the disk is mounted.
func (d *LossyDisk) Dir() string { return d.dir }

// Stall makes all that changes the disk hang, until Heal.
func (d *LossyDisk) Stall() error { return d.command(nil, "stall") }

// Delay makes each fsync take so much longer.
func (d *LossyDisk) Delay(fsync time.Duration) error { return d.command(nil, "delay %v", fsync) }

// FailNext answers the next operation of a kind with EIO. A flush that failed has dropped its pages.
func (d *LossyDisk) FailNext(op Op) error { return d.command(nil, "fail %s", op) }

// Heal ends all faults but a crash.
func (d *LossyDisk) Heal() error { return d.command(nil, "heal") }

// Crash takes all that was not flushed. From then on everything fails with EIO until Remount.
func (d *LossyDisk) Crash() (lost CrashLoss, err error) {
	return lost, d.command(&lost, "crash nothing")
}

// CrashSome takes some of what was not flushed, as the seed decides.
func (d *LossyDisk) CrashSome(seed uint64) (lost CrashLoss, err error) {
	return lost, d.command(&lost, "crash %d", seed)
}

// Remount mounts a crashed disk anew, without faults.
func (d *LossyDisk) Remount() error { return d.command(nil, "up") }

// Hanging is how many operations hang.
func (d *LossyDisk) Hanging() (n int, err error) { return n, d.command(&n, "hanging") }

// command gives a command and waits for its answer.
func (d *LossyDisk) command(into any, format string, args ...any) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	order := fmt.Sprintf(format, args...)
	if _, err := fmt.Fprintln(d.commands, order); err != nil {
		return fmt.Errorf("disk %s: %s: lossyfs has ended: %w", d.name, order, err)
	}
	return d.readReply(order, into)
}

// readReply takes the answer to an order. The caller has the mutex.
func (d *LossyDisk) readReply(order string, into any) error {
	if !d.replies.Scan() {
		return fmt.Errorf("disk %s: %s: lossyfs has ended without an answer: %w", d.name, order, d.replies.Err())
	}
	reply := d.replies.Text()
	answer, ok := strings.CutPrefix(reply, "ok")
	if !ok {
		return fmt.Errorf("disk %s: %s: %s", d.name, order, strings.TrimPrefix(reply, "error "))
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal([]byte(answer), into)
}

// Close unmounts the disk. What hangs ends with EIO.
func (d *LossyDisk) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	ending := time.AfterFunc(exitTimeout, func() { _ = d.program.Process.Kill() })
	defer ending.Stop()
	_ = d.commands.Close() // the end of its input; Wait reports what goes wrong
	if err := d.program.Wait(); err != nil {
		return fmt.Errorf("disk %s: lossyfs ended: %w", d.name, err)
	}
	return nil
}
