package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

func main() {
	backing := flag.String("backing", "", "the folder that keeps what the disk holds")
	mount := flag.String("mount", "", "where the disk appears")
	flag.Parse()
	if err := run(*backing, *mount, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "lossyfs:", err)
		os.Exit(1)
	}
}

// run serves the disk until the commands end.
func run(backing, mount string, commands io.Reader, answers io.Writer) error {
	m := &host{backing: backing, mount: mount}
	err := m.mountDisk()
	answer(answers, nil, err)
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(commands)
	for lines.Scan() {
		command, arg, _ := strings.Cut(lines.Text(), " ")
		said, err := m.execute(command, arg)
		answer(answers, said, err)
	}
	if !m.disk.crashed {
		close(m.disk.faults.crashed) // or what hangs would hang forever
	}
	return errors.Join(lines.Err(), m.unmount())
}

func answer(w io.Writer, said any, err error) {
	switch {
	case err != nil:
		fmt.Fprintln(w, "error", strings.ReplaceAll(err.Error(), "\n", "; "))
	case said == nil:
		fmt.Fprintln(w, "ok")
	default:
		text, _ := json.Marshal(said) // of counters, which always works
		fmt.Fprintf(w, "ok %s\n", text)
	}
}

// host is what has the disk: it can crash and come up again. One goroutine commands it.
type host struct {
	backing, mount string
	disk           *disk
	mounted        bool
}

// mountDisk mounts the disk, for a life of its own.
func (m *host) mountDisk() error {
	if m.disk != nil && !m.disk.crashed {
		return errors.New("the disk is up; nothing was changed; crash it first")
	}
	if err := m.unmount(); err != nil {
		return err
	}
	d, err := newDisk(m.backing)
	if err != nil {
		return err
	}
	_, err = fs.Mount(m.mount, &node{disk: d}, &fs.Options{MountOptions: fuse.MountOptions{
		FsName: "lossyfs", Name: "lossyfs", DirectMountStrict: true, MaxWrite: 1 << 20,
		// Nobody else changes the files, so the kernel need not throw away its pages when a time changed.
		ExplicitDataCacheControl: true,
	}})
	if err != nil {
		return fmt.Errorf("can't mount on %s: %w", m.mount, err)
	}
	m.disk, m.mounted = d, true
	return nil
}

// unmount takes the disk off its place. Whoever has a file of it open keeps a disk that is dead.
func (m *host) unmount() error {
	if !m.mounted {
		return nil
	}
	m.mounted = false
	return syscall.Unmount(m.mount, syscall.MNT_DETACH)
}

// execute carries out a command, and returns what is to be answered.
func (m *host) execute(command, arg string) (any, error) {
	f := m.disk.faults
	if command == "up" {
		return nil, m.mountDisk()
	}
	if m.disk.crashed {
		return nil, errors.New("the disk has crashed; nothing was changed; up brings it back")
	}
	switch command {
	case "stall":
		f.stall()
	case "heal":
		f.heal()
	case "hanging":
		return f.countHanging(), nil
	case "delay":
		delay, err := time.ParseDuration(arg)
		if err != nil {
			return nil, err
		}
		f.setDelay(delay)
	case "fail":
		o, known := map[string]op{"writes": opWrite, "fsyncs": opFsync}[arg]
		if !known {
			return nil, fmt.Errorf("fail %s: want writes or fsyncs", arg)
		}
		f.setFail(o)
	case "crash":
		if arg == "nothing" {
			return m.disk.crash(nil)
		}
		seed, err := strconv.ParseUint(arg, 10, 64)
		if err != nil {
			return nil, err
		}
		return m.disk.crash(rand.New(rand.NewPCG(seed, 0)))
	default:
		return nil, fmt.Errorf("no command %q; see the package's documentation", command)
	}
	return nil, nil
}
