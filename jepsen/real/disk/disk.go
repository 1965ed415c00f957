package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrUnsupported is the error of a machine on which disks can't be made to fail: root, /dev/fuse,
// mounting or the Go command is missing. A run without them notes it in its report.
var ErrUnsupported = errors.New("disks can't be made to fail here")

// isolatedVariable marks a process in a mount namespace of its own.
const isolatedVariable = "ZAMOK_DISK_ISOLATED"

// Isolate starts this program anew, in the same process and in a mount namespace of its own, where
// it returns nil and disks can be mounted. After an error Open fails.
func Isolate() error {
	if os.Getenv(isolatedVariable) != "" {
		return nil
	}
	// the namespace is this thread's, and the only one that is left when it starts the program
	runtime.LockOSThread()
	err := unix.Unshare(unix.CLONE_NEWNS)
	if err == nil {
		err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	}
	if err == nil {
		err = syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), isolatedVariable+"=1"))
	}
	return fmt.Errorf("%w: a mount namespace, for which root is needed: %w", ErrUnsupported, err)
}

// Pool makes the disks of a run.
type Pool struct {
	dir     string
	program string // lossyfs
}

// Open builds lossyfs. dir is the pool's own. The process must have called Isolate.
func Open(ctx context.Context, dir string) (*Pool, error) {
	if os.Getenv(isolatedVariable) == "" {
		return nil, fmt.Errorf("%w: there is no mount namespace for them", ErrUnsupported)
	}
	fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	fuse.Close()
	if _, err := exec.LookPath("go"); err != nil {
		return nil, fmt.Errorf("%w: lossyfs is built with the go command: %w", ErrUnsupported, err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return nil, fmt.Errorf("lossyfs was not built, because the module is not found: %w", err)
	}
	p := &Pool{dir: dir, program: filepath.Join(dir, "lossyfs")}
	build := exec.CommandContext(ctx, "go", "build", "-o", p.program, ".")
	build.Dir = filepath.Join(strings.TrimSpace(string(root)), "jepsen", "real", "lossyfs")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("lossyfs was not built: %w: %s", err, said)
	}
	return p, nil
}

// Disk is a mounted lossyfs. It is given one command at a time.
type Disk struct {
	Dir      string // where it is mounted
	program  *exec.Cmd
	commands *rpc.Client
}

// Faults is what a disk does wrong.
type Faults struct {
	Stall      bool          // what changes the disk hangs, until the faults are others
	FsyncDelay time.Duration // each fsync takes so much longer
	// FailWrite and FailFsync answer the next operation with EIO. Writes are also all changes of
	// names and lengths. A flush that failed has dropped its pages.
	FailWrite, FailFsync bool
	Full                 bool // nothing is free but what is given back from now on
}

// CrashLoss is what a crash took, and what it could have taken.
type CrashLoss struct {
	Pages, KeptPages int // written or cut off, and not flushed
	Files            int // that lost pages or fell back in length
	Names, KeptNames int // changes of names
}

// exitTimeout bounds how long a lossyfs whose input has ended may take to end, on a busy machine
// too.
const exitTimeout = time.Minute

// Add mounts an empty disk.
func (p *Pool) Add(name string) (*Disk, error) {
	d := &Disk{Dir: filepath.Join(p.dir, name)}
	if err := os.MkdirAll(d.Dir, 0o755); err != nil {
		return nil, err
	}
	d.program = exec.Command(p.program, "-mount", d.Dir)
	d.program.Stderr = os.Stderr
	// A Ctrl-C is for the run, which still needs its disks to end cleanly.
	d.program.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := d.program.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := d.program.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := d.program.Start(); err != nil {
		return nil, err
	}
	d.commands = rpc.NewClient(struct {
		io.Reader
		io.WriteCloser
	}{out, in})
	if err := d.Mount(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Disk) command(name string, args, reply any) error {
	if err := d.commands.Call("Disk."+name, args, reply); err != nil {
		return fmt.Errorf("disk %s: %s %v: %w", d.Dir, name, args, err)
	}
	return nil
}

// SetFaults replaces all faults, by none if they are empty.
func (d *Disk) SetFaults(f Faults) error { return d.command("SetFaults", f, new(int)) }

// Crash takes what was not flushed: with a seed some of it, with 0 all. From then on everything
// fails with EIO until Mount.
func (d *Disk) Crash(seed uint64) (lost CrashLoss, err error) {
	return lost, d.command("Crash", seed, &lost)
}

// Mount mounts a disk that is new or has crashed, without faults.
func (d *Disk) Mount() error { return d.command("Mount", 0, new(int)) }

// Close unmounts the disk, and ends what serves it. What hangs ends with EIO, and open files there
// are lost.
func (d *Disk) Close() error {
	ending := time.AfterFunc(exitTimeout, func() { _ = d.program.Process.Kill() })
	defer ending.Stop()
	_ = d.commands.Close() // the end of its input; Wait reports what goes wrong
	if err := d.program.Wait(); err != nil {
		return fmt.Errorf("disk %s: lossyfs ended: %w", d.Dir, err)
	}
	return nil
}
