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

// Disk is a mounted lossyfs. Its methods may be called from several goroutines.
type Disk struct {
	name string
	dir  string

	mu      sync.Mutex // one command at a time
	program *exec.Cmd  // nil: closed
	orders  io.WriteCloser
	answers *bufio.Scanner
}

// Op is what Fail is about.
type Op string

// The operations that can be made to fail. Writes are also all changes of names and lengths.
const (
	Reads  Op = "reads"
	Writes Op = "writes"
	Fsyncs Op = "fsyncs"
)

// Keep says what a crash leaves of what was not flushed.
type Keep string

// What a crash can leave.
const (
	KeepNothing Keep = "nothing"
	KeepSome    Keep = "some" // as the seed says
	KeepAll     Keep = "all"
)

// Lost is what a crash took, and what it could have taken.
type Lost struct {
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

// endsWithin bounds how long a lossyfs whose input has ended may take to end, on a busy machine too.
const endsWithin = time.Minute

// Lossy mounts a disk. What it holds is kept on a small one, or, without, in a folder beside it.
func (s *Shelf) Lossy(name string, on *Small) (*Disk, error) {
	dir, err := s.place(name)
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
	d := &Disk{name: name, dir: dir}
	d.program = exec.Command(s.program, "-backing", backing, "-mount", dir, "-name", s.run)
	d.program.Stderr = os.Stderr
	// A Ctrl-C is for the run, which still needs its disks to end in good order.
	d.program.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if d.orders, err = d.program.StdinPipe(); err != nil {
		return nil, err
	}
	answers, err := d.program.StdoutPipe()
	if err != nil {
		return nil, err
	}
	d.answers = bufio.NewScanner(answers)
	if err := d.program.Start(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.disks = append(s.disks, d)
	s.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	return d, d.hear("mount", nil)
}

// Dir is where the disk is mounted.
func (d *Disk) Dir() string { return d.dir }

// Stall lets all that changes the disk hang, until Resume or Heal.
func (d *Disk) Stall() error { return d.tell(nil, "stall") }

// Resume lets what hangs land.
func (d *Disk) Resume() error { return d.tell(nil, "resume") }

// Delay makes each write and each fsync take so much longer.
func (d *Disk) Delay(write, fsync time.Duration) error {
	return d.tell(nil, "delay %v %v", write, fsync)
}

// Fail answers so many operations with EIO; 0: all until Heal. A flush that failed has dropped its pages.
func (d *Disk) Fail(op Op, times int) error { return d.tell(nil, "fail %s %d", op, times) }

// Full refuses whatever needs a new block, or no longer does.
func (d *Disk) Full(full bool) error {
	if full {
		return d.tell(nil, "full")
	}
	return d.tell(nil, "roomy")
}

// Heal ends all faults but a crash.
func (d *Disk) Heal() error { return d.tell(nil, "heal") }

// Crash takes what was not flushed, but for what keep leaves. From then on everything fails with EIO until Up.
func (d *Disk) Crash(keep Keep, seed uint64) (lost Lost, err error) {
	return lost, d.tell(&lost, "crash %s %d", keep, seed)
}

// Up mounts a crashed disk anew, without faults.
func (d *Disk) Up() error { return d.tell(nil, "up") }

// Stats asks for the counts.
func (d *Disk) Stats() (stats Stats, err error) {
	return stats, d.tell(&stats, "stats")
}

// tell gives a command and waits for its answer.
func (d *Disk) tell(into any, format string, args ...any) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	order := fmt.Sprintf(format, args...)
	if d.program == nil {
		return fmt.Errorf("disk %s: %s: it is closed", d.name, order)
	}
	if _, err := fmt.Fprintln(d.orders, order); err != nil {
		return fmt.Errorf("disk %s: %s: lossyfs does not listen: %w", d.name, order, err)
	}
	return d.hear(order, into)
}

// hear takes the answer to an order. The caller has the mutex.
func (d *Disk) hear(order string, into any) error {
	if !d.answers.Scan() {
		return fmt.Errorf("disk %s: %s: lossyfs has ended without an answer: %w", d.name, order, d.answers.Err())
	}
	said := d.answers.Text()
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
func (d *Disk) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.program == nil {
		return nil
	}
	defer func() { d.program = nil }()
	ending := time.AfterFunc(endsWithin, func() { _ = d.program.Process.Kill() })
	defer ending.Stop()
	_ = d.orders.Close() // the end of its input; it can't fail in a way that Wait does not tell
	if err := d.program.Wait(); err != nil {
		return fmt.Errorf("disk %s: lossyfs ended: %w", d.name, err)
	}
	return nil
}
