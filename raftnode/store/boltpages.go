package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// What bbolt writes, as far as it is checked here: see page.go, meta.go and
// inode.go in bbolt's internal/common. All numbers are in the machine's own order.
const (
	boltMagic      = 0xED0CDAED
	boltVersion    = 2
	boltMetaPages  = 2
	boltPageBytes  = 16 // of a page's head
	boltMetaBytes  = 64
	boltElement    = 16 // bytes
	boltBucket     = 16 // bytes: root page, sequence
	boltNoFreelist = ^uint64(0)

	boltBranch = 1
	boltLeaf   = 2
	boltMeta   = 4
)

type boltPageHead struct {
	ID           uint64
	Kind, Count  uint16
	Continuation uint32 // how many pages continue this one
}

type boltMetaPage struct {
	Head                                            boltPageHead
	Magic, Version, PageBytes, Flags                uint32
	Root, Sequence, Freelist, End, Transaction, Sum uint64
}

// boltPages reads the pages of a bbolt file that is not open yet.
//
// bbolt checks no page but the two that say where the tree is, and of these it
// takes the older one when the newer one is damaged. A damaged tree makes it read
// other keys, panic, also on goroutines where no caller can recover, or touch memory
// beyond the end of the file. So the whole tree is checked before bbolt maps the
// file. What bbolt writes has one form only: elements in order and without a gap
// between them, no page used twice, no more pages than the elements need. What is
// in keys and values is checked by the code that wrote them.
//
// bbolt's own Tx.Check does not serve: it needs the file mapped, and panics on such a goroutine.
type boltPages struct {
	file io.ReaderAt
	page int64  // bytes of a page
	end  uint64 // the number of pages that have been in use
	used map[uint64]bool
}

// checkBolt returns what is wrong with a bbolt file, or nil.
func checkBolt(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return recovered(func() error {
		p := &boltPages{file: f, used: map[uint64]bool{}}
		newest := p.meta(0)
		p.page = int64(newest.PageBytes)
		second := p.meta(1)
		expect(newest.PageBytes == second.PageBytes && newest.Transaction != second.Transaction,
			"its two meta pages contradict each other")
		if second.Transaction > newest.Transaction {
			newest = second
		}
		p.end = newest.End
		expect(p.end <= uint64(info.Size()/p.page) && newest.Freelist == boltNoFreelist,
			"it has %d bytes, and its meta page counts %d pages of %d", info.Size(), p.end, p.page)
		p.walk(newest.Root, nil, nil)
		return nil
	})
}

// expect ends the check of a file that is not as bbolt writes it. checkBolt makes an error of the panic, as is
// done with those of bbolt.
func expect(fulfilled bool, format string, args ...any) {
	if !fulfilled {
		panic(fmt.Sprintf(format, args...))
	}
}

// read reads the first bytes of a page, with those that continue it.
func (p *boltPages) read(number uint64, size int64) []byte {
	text := make([]byte, size)
	_, err := p.file.ReadAt(text, int64(number)*p.page)
	expect(err == nil, "page %d: %v", number, err)
	return text
}

// meta reads one of the two pages that say where the tree is.
func (p *boltPages) meta(number uint64) (m boltMetaPage) {
	text := p.read(number, boltPageBytes+boltMetaBytes)
	decodeBolt(text, &m)
	sum := fnv.New64a()
	sum.Write(text[boltPageBytes : len(text)-8])
	expect(m.Sum == sum.Sum64() && m.Magic == boltMagic && m.Version == boltVersion &&
		m.Head.ID == number && m.Head.Kind == boltMeta && int(m.PageBytes) >= len(text),
		"meta page %d: it does not fit its checksum", number)
	return m
}

// decodeBolt decodes a value from the beginning of a longer text.
func decodeBolt(text []byte, value any) {
	_, err := binary.Decode(text, binary.NativeEndian, value)
	expect(err == nil, "%v", err)
}

// walk checks a page, with those that continue it, and all below it. Its keys are from least on and below
// end; nil is no bound.
func (p *boltPages) walk(number uint64, least, end []byte) {
	expect(number >= boltMetaPages && number < p.end, "page %d is beyond the end", number)
	var head boltPageHead
	decodeBolt(p.read(number, boltPageBytes), &head)
	last := number + uint64(head.Continuation)
	expect(head.ID == number && last < p.end && (head.Kind == boltBranch || head.Kind == boltLeaf),
		"page %d is not what it is used as", number)
	for i := number; i <= last; i++ {
		expect(!p.used[i], "page %d is used twice", i)
		p.used[i] = true
	}
	text := p.read(number, int64(last+1-number)*p.page)
	size := p.elements(number, text, least, end)
	pages := (int64(size) + p.page - 1) / p.page
	expect(pages*p.page == int64(len(text)), "page %d has another length than its elements", number)
}

// elements checks what is on a page, and below it, and returns how many bytes of the page it takes. The page
// may be that of a bucket inside the page of this number.
func (p *boltPages) elements(number uint64, text, least, end []byte) (size int) {
	var head boltPageHead
	decodeBolt(text, &head)
	count := int(head.Count)
	size = boltPageBytes + count*boltElement
	expect(size <= len(text) && (head.Kind == boltLeaf || count > 0), "page %d: %d elements", number, count)
	// A leaf's element is flags, offset, length of the key and of the value; a branch's is offset,
	// length of the key, and page.
	words := make([][4]uint32, count)
	decodeBolt(text[boltPageBytes:], words)
	keys := make([][]byte, count, count+1)
	for i, word := range words {
		flags, offset, key, value := word[0], uint64(word[1]), uint64(word[2]), uint64(word[3])
		if head.Kind == boltBranch {
			flags, offset, key, value = 0, uint64(word[0]), uint64(word[1]), 0
		}
		from := uint64(size)
		to := from + key + value
		expect(uint64(boltPageBytes+i*boltElement)+offset == from && key > 0 && to <= uint64(len(text)),
			"page %d: element %d is at the wrong offset", number, i)
		size, keys[i] = int(to), text[from:from+key]
		order := bytes.Compare(keys[i], least)
		expect((order > 0 || order == 0 && i == 0) && (end == nil || bytes.Compare(keys[i], end) < 0),
			"page %d: key %d is out of order", number, i)
		least = keys[i]
		if flags != 0 {
			p.bucket(number, flags, text[from+key:to])
		}
	}
	keys = append(keys, end)
	for i := 0; head.Kind == boltBranch && i < count; i++ {
		p.walk(binary.NativeEndian.Uint64(text[boltPageBytes+i*boltElement+8:]), keys[i], keys[i+1])
	}
	return size
}

// bucket checks the bucket that a value is.
func (p *boltPages) bucket(number uint64, flags uint32, value []byte) {
	expect(flags == 1 && len(value) >= boltBucket, "page %d: a value of an unknown kind", number)
	if root := binary.NativeEndian.Uint64(value); root != 0 {
		p.walk(root, nil, nil)
		return
	}
	inline := value[boltBucket:]
	expect(len(inline) >= boltPageBytes && binary.NativeEndian.Uint16(inline[8:]) == boltLeaf,
		"page %d: a bucket without a page", number)
	size := p.elements(number, inline, nil, nil)
	expect(size == len(inline), "page %d: a bucket of %d bytes with %d bytes of elements", number, len(inline), size)
}
