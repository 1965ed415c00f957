package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
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
	name := flag.String("name", "lossyfs", "what the list of mounts calls it")
	flag.Parse()
	if err := run(*backing, *mount, *name, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "lossyfs:", err)
		os.Exit(1)
	}
}

// run serves the disk until the commands end.
func run(backing, mount, name string, commands io.Reader, answers io.Writer) error {
	m := &host{backing: backing, mount: mount, name: name}
	err := m.mountDisk()
	answer(answers, nil, err)
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(commands)
	for lines.Scan() {
		said, err := m.execute(strings.Fields(lines.Text()))
		answer(answers, said, err)
	}
	if !m.disk.crashed {
		close(m.disk.faults.crashed) // or whoever hangs would hang forever
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
	backing, mount, name string
	disk                 *disk
	mounted              bool
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
		FsName: m.name, Name: "lossyfs", DirectMountStrict: true, MaxWrite: 1 << 20,
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

// Stats answers `stats`.
type Stats struct {
	Counters
	Pages, Names int // that a crash would take at most
}

func (m *host) execute(words []string) (any, error) {
	f := m.disk.faults
	switch usage := strings.Join(words, " "); {
	case usage == "up":
		return nil, m.mountDisk()
	case usage == "stats":
		pages, names := m.disk.pending()
		return Stats{f.counts(), pages, names}, nil
	case m.disk.crashed:
		return nil, errors.New("the disk has crashed; nothing was changed; up brings it back")
	case usage == "stall":
		f.stall()
	case usage == "resume":
		f.resume()
	case usage == "heal":
		f.heal()
	case usage == "full", usage == "roomy":
		f.setFull(usage == "full")
	case len(words) == 3 && words[0] == "delay":
		return nil, m.slow(words[1], words[2])
	case len(words) == 3 && words[0] == "fail":
		return nil, m.fail(words[1], words[2])
	case len(words) == 3 && words[0] == "crash":
		return m.crash(words[1], words[2])
	default:
		return nil, fmt.Errorf("no command %q; see the package's documentation", usage)
	}
	return nil, nil
}

func (m *host) slow(write, fsync string) error {
	w, err := time.ParseDuration(write)
	if err != nil {
		return err
	}
	s, err := time.ParseDuration(fsync)
	if err == nil {
		m.disk.faults.setDelay(w, s)
	}
	return err
}

func (m *host) fail(what, times string) error {
	o, known := map[string]op{"reads": opRead, "writes": opWrite, "fsyncs": opFsync}[what]
	n, err := strconv.Atoi(times)
	if !known || err != nil || n < 0 {
		return fmt.Errorf("fail %s %s: want reads, writes or fsyncs, and a count", what, times)
	}
	m.disk.faults.setFail(o, n)
	return nil
}

func (m *host) crash(keep, seed string) (any, error) {
	n, err := strconv.ParseUint(seed, 10, 64)
	if err != nil {
		return nil, err
	}
	if keep != "nothing" && keep != "some" && keep != "all" {
		return nil, fmt.Errorf("crash %s: want nothing, some or all", keep)
	}
	return m.disk.crash(keep, n)
}
