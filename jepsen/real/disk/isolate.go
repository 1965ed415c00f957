package disk

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// isolatedVariable marks a process in a mount namespace of its own.
const isolatedVariable = "ZAMOK_DISK_ISOLATED"

// Isolate runs this program once more in a mount namespace of its own, and returns how it ended there; the caller
// then exits likewise. In the namespace it returns nil, and disks can be mounted. After an error Open fails.
func Isolate() (ended *os.ProcessState, err error) {
	if os.Getenv(isolatedVariable) != "" {
		return nil, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	}
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("%w: to mount needs root, and this is user %d", ErrUnsupported, os.Geteuid())
	}
	runtime.LockOSThread() // the kernel kills the child when the thread ends that started it
	self := exec.Command("/proc/self/exe", os.Args[1:]...)
	self.Args[0] = os.Args[0]
	self.Env = append(os.Environ(), isolatedVariable+"=1")
	self.Stdin, self.Stdout, self.Stderr = os.Stdin, os.Stdout, os.Stderr
	self.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if err := self.Start(); err != nil {
		signal.Stop(signals)
		return nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	go func() { // until the caller exits
		for s := range signals {
			if s == syscall.SIGTERM { // the terminal sends an interrupt to both
				_ = self.Process.Signal(s)
			}
		}
	}()
	_ = self.Wait() // its state says how it ended
	return self.ProcessState, nil
}
