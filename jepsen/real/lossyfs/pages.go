package main

import (
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// pageSize is what a disk is taken to write whole or not at all.
const pageSize = 4096

// trackedFile remembers what of a file a crash would bring back. It is owned by disk.mu. The bytes themselves
// are passed on at once; what they were is kept here until they are flushed.
type trackedFile struct {
	f            *os.File       // for bringing back; open as long as this is known
	pages        map[int64]page // changed since the last flush, by number
	size         int64          // at the last flush
	preallocated int64          // allocated in advance: so many bytes from the beginning never need a new block
}

// page is what a page was at the last flush. At the end of the file it is shorter, behind it empty.
type page struct {
	saved   []byte
	dropped bool // a flush failed to write it, and the next one will not try (L3)
}

// trackFile begins to keep account of a file that is wholly flushed, or new and empty.
func trackFile(path string) (*trackedFile, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	size, err := sizeOf(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &trackedFile{f: f, pages: map[int64]page{}, size: size}, nil
}

func sizeOf(f *os.File) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// saveRange keeps what the bytes from..to are, before they are changed.
func (f *trackedFile) saveRange(from, to int64) error {
	for n := from / pageSize; n*pageSize < to; n++ {
		if p, known := f.pages[n]; known {
			p.dropped = false // changed once more, so the next flush writes it
			f.pages[n] = p
			continue
		}
		was := make([]byte, pageSize)
		got, err := f.f.ReadAt(was, n*pageSize)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		f.pages[n] = page{saved: slices.Clip(was[:got])}
	}
	return nil
}

// truncate changes the length.
func (f *trackedFile) truncate(size int64) error {
	now, err := sizeOf(f.f)
	if err != nil {
		return err
	}
	if size < now {
		if err := f.saveRange(size, now); err != nil {
			return err
		}
	}
	return f.f.Truncate(size)
}

// markDurable: what was written is durable, but for what an earlier flush has dropped.
func (f *trackedFile) markDurable() error {
	for n, p := range f.pages {
		if !p.dropped {
			delete(f.pages, n)
		}
	}
	var err error
	f.size, err = sizeOf(f.f)
	return err
}

// dropDirty: a flush failed, and Linux takes the pages for clean from now on.
func (f *trackedFile) dropDirty() {
	for n, p := range f.pages {
		p.dropped = true
		f.pages[n] = p
	}
}

// needsBlock reports whether a write of from..to needs a block that the file does not have yet.
func (f *trackedFile) needsBlock(from, to int64) (bool, error) {
	if to <= f.preallocated {
		return false, nil
	}
	size, err := sizeOf(f.f)
	if err != nil {
		return false, err
	}
	if end := (size + pageSize - 1) / pageSize * pageSize; to > end {
		return true, nil
	}
	hole, err := unix.Seek(int(f.f.Fd()), from, unix.SEEK_HOLE)
	if errors.Is(err, syscall.ENXIO) { // from is in the last page, behind the end
		return false, nil
	}
	return hole < min(to, size), err
}

// crash brings back what was not flushed, as far as keep says, and counts it.
func (f *trackedFile) crash(keep keepPolicy, lost *CrashLoss) error {
	now, err := sizeOf(f.f)
	if err != nil {
		return err
	}
	size := f.size
	if now != f.size && keep.keeps() {
		size = now
	}
	numbers := make([]int64, 0, len(f.pages))
	for n := range f.pages {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	gone := 0
	for _, n := range numbers {
		if !f.pages[n].dropped && keep.keeps() {
			lost.KeptPages++
			continue
		}
		gone++
		whole := make([]byte, pageSize)
		copy(whole, f.pages[n].saved)
		if _, err := f.f.WriteAt(whole, n*pageSize); err != nil {
			return err
		}
	}
	lost.Pages += gone
	if gone > 0 || size != now {
		lost.Files++
	}
	return f.f.Truncate(size)
}

// keepPolicy decides what a crash keeps.
type keepPolicy struct {
	keep string // nothing, some, all
	dice *rand.Rand
}

func (c keepPolicy) keeps() bool {
	return c.keep == "all" || c.keep == "some" && c.dice.IntN(2) == 0
}
