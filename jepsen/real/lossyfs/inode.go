package main

import (
	"maps"
	"math/rand/v2"
	"slices"
	"time"
)

// pageSize is what a disk is taken to write whole or not at all.
const pageSize = 4096

// inode is a file or a folder. It outlives crashes.
type inode struct {
	number  uint64
	mode    uint32
	changed time.Time

	names map[string]*inode // of a folder

	// Of a file: the pages by number, replaced and never changed (one that is missing is empty),
	// and the length; both as they are, and as they were flushed.
	pages, flushed    map[int64][]byte
	size, flushedSize int64
	// dirty has the pages that were changed since they were flushed. False: a flush failed to write
	// it, and the next one will not try (L3).
	dirty map[int64]bool
}

// setPage replaces a page, which the next flush writes.
func (f *inode) setPage(n int64, content []byte) {
	f.dirty[n] = true
	putPage(f.pages, n, content)
}

func putPage(pages map[int64][]byte, n int64, content []byte) {
	if content == nil {
		delete(pages, n)
	} else {
		pages[n] = content
	}
}

// missing counts the pages of a range that have no room yet.
func (f *inode) missing(from, to int64) (n int64) {
	for page := from / pageSize; page*pageSize < to; page++ {
		if f.pages[page] == nil {
			n++
		}
	}
	return n
}

func (f *inode) read(into []byte, off int64) int {
	into = into[:min(max(f.size-off, 0), int64(len(into)))]
	for done := 0; done < len(into); {
		n, in := (off+int64(done))/pageSize, (off+int64(done))%pageSize
		part := into[done:min(len(into), done+int(pageSize-in))]
		clear(part)
		copy(part, f.pages[n][min(in, int64(len(f.pages[n]))):])
		done += len(part)
	}
	return len(into)
}

func (f *inode) write(data []byte, off int64) {
	f.size, f.changed = max(f.size, off+int64(len(data))), time.Now()
	for len(data) > 0 {
		page := make([]byte, pageSize)
		copy(page, f.pages[off/pageSize])
		done := copy(page[off%pageSize:], data)
		f.setPage(off/pageSize, page)
		data, off = data[done:], off+int64(done)
	}
}

// truncate changes the length.
func (f *inode) truncate(size int64) {
	for n := size / pageSize; n*pageSize < f.size; n++ {
		var rest []byte
		if keep := size - n*pageSize; keep > 0 && f.pages[n] != nil {
			rest = make([]byte, pageSize)
			copy(rest, f.pages[n][:keep])
		}
		f.setPage(n, rest)
	}
	f.size, f.changed = size, time.Now()
}

// flush makes what was written durable, but for what an earlier flush has dropped.
func (f *inode) flush() {
	for n, write := range f.dirty {
		if write {
			putPage(f.flushed, n, f.pages[n])
			delete(f.dirty, n)
		}
	}
	f.flushedSize = f.size
}

// dropDirty: a flush failed, and Linux takes the pages for clean from now on.
func (f *inode) dropDirty() {
	for n := range f.dirty {
		f.dirty[n] = false
	}
}

// crash brings back what was not flushed, as the dice decide, and counts it.
func (f *inode) crash(dice *rand.Rand, lost *CrashLoss) {
	size, gone := f.flushedSize, 0
	if f.size != f.flushedSize && keeps(dice) {
		size = f.size
	}
	for _, n := range slices.Sorted(maps.Keys(f.dirty)) {
		if f.dirty[n] && keeps(dice) {
			lost.KeptPages++
		} else {
			gone++
			putPage(f.pages, n, f.flushed[n])
		}
	}
	lost.Pages += gone
	if gone > 0 || size != f.size {
		lost.Files++
	}
	f.truncate(size)
	f.flushed, f.flushedSize, f.dirty = maps.Clone(f.pages), size, map[int64]bool{}
}

// keeps decides whether a crash keeps something.
func keeps(dice *rand.Rand) bool { return dice != nil && dice.IntN(2) == 0 }

// each visits an inode and what is below it, in the order of the names.
func (f *inode) each(do func(*inode)) {
	do(f)
	for _, name := range slices.Sorted(maps.Keys(f.names)) {
		f.names[name].each(do)
	}
}
