package main

import (
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
)

// pageSize is what a disk is taken to write whole or not at all.
const pageSize = 4096

// trackedFile remembers what of a file a crash would bring back. It is owned by disk.mu. The bytes themselves
// are passed on at once; what they were is kept here until they are flushed.
type trackedFile struct {
	f     *os.File       // for bringing back; open as long as this is known
	pages map[int64]page // changed since the last flush, by number
	size  int64          // at the last flush
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

// crash brings back what was not flushed, as the dice decide, and counts it.
func (f *trackedFile) crash(dice *rand.Rand, lost *CrashLoss) error {
	now, err := sizeOf(f.f)
	if err != nil {
		return err
	}
	size := f.size
	if now != f.size && keeps(dice) {
		size = now
	}
	gone := 0
	for _, n := range slices.Sorted(maps.Keys(f.pages)) {
		if !f.pages[n].dropped && keeps(dice) {
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

// keeps decides whether a crash keeps something.
func keeps(dice *rand.Rand) bool { return dice != nil && dice.IntN(2) == 0 }
